"""Trust in certificates: the same as kubectl's and kube-scheduler's, on every Python.

Knows the `ssl` module; reads no file.

Tested in `tests/integration/test_bare_authorities.py`.
"""

import ssl


def trust_as_kubernetes(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context with the trust rules of Go's crypto/x509.

    From Python 3.13 on `ssl` sets VERIFY_X509_STRICT, which refuses authorities without a key usage
    and certificates without an authority key identifier. RFC 5280 demands both, many clusters have
    neither, and Go demands neither. A CA file may name an intermediate authority alone, as for Go;
    Python allows that from 3.13 on.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
