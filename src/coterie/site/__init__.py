"""What every data holder runs: its records, keys, policy and ledger, and a server that answers a coordinator."""
