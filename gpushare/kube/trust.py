"""Trust in certificates: the same as kubectl's and kube-scheduler's, on every Python.

Knows the `ssl` module; reads no file.

Tested in `tests/integration/test_bare_authorities.py`.
"""

import ssl


def trust_as_kubernetes(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context, made to trust what Go's crypto/x509 trusts.

    From Python 3.13 on `ssl` sets VERIFY_X509_STRICT by itself. It refuses authorities without a
    key usage and certificates without an authority key identifier. RFC 5280 asks for both, many
    clusters have neither, and Go asks for neither. A CA file may name an intermediate authority
    alone, as it may for Go; Python allows that from 3.13 on.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
