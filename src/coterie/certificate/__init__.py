"""What a run promises, on one page that can be checked by anybody who has Coterie."""

from coterie.certificate.certificate import Certificate, View, make_certificate, shown_loss
from coterie.certificate.statements import Past, cautions, party_price, price

__all__ = ["Certificate", "Past", "View", "cautions", "make_certificate", "party_price", "price", "shown_loss"]
