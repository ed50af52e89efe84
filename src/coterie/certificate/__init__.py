"""What a run promises, on one page that can be checked by anybody who has Coterie."""

from coterie.certificate.certificate import Certificate, View, make_certificate
from coterie.certificate.markdown import shown_loss

__all__ = ["Certificate", "View", "make_certificate", "shown_loss"]
