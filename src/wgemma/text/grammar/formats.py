"""The formats of JSON Schema as patterns. What is not here is listed as unchecked.

Dates know the lengths of months and leap years. A leap second needs a time zone to be checked, so none is written.
"""

_YEARS_WITH_29 = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_YEARS_WITH_29}-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,30})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_DURATION = (
    r"P(?:\d{1,9}W|(?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D)"
    r"(?:T(?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S))?"
    r"|T(?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S))"
)

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"

_H16 = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    "(?:"
    + "|".join(
        [rf"(?:{_H16}:){{6}}{_LS32}"]
        + [rf"(?:(?:{_H16}:){{0,{n}}}{_H16})?::(?:{_H16}:){{{4 - n}}}{_LS32}" for n in range(5)]
        + [rf"::(?:{_H16}:){{5}}{_LS32}"]
        + [rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}", rf"(?:(?:{_H16}:){{0,6}}{_H16})?::"]
    )
    + ")"
)

_ENCODED = "%[0-9A-Fa-f]{2}"


def _uri(more: str) -> tuple[str, str]:
    """A URI and a reference to one; `more` are the letters beyond ASCII, if any."""
    plain = rf"[A-Za-z0-9\-._~!$&'()*+,;={more}]"
    char = rf"(?:{plain[:-1]}:@]|{_ENCODED})"
    host = rf"(?:\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]|(?:{plain}|{_ENCODED})*)"
    authority = rf"(?:(?:{plain[:-1]}:]|{_ENCODED})*@)?{host}(?::\d*)?"
    path = rf"(?:/{char}*)*"
    rest = rf"(?:\?(?:{char}|[/?])*)?(?:#(?:{char}|[/?])*)?"
    absolute = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{authority}{path}|/(?:{char}+{path})?|{char}+{path}|){rest}"
    first = rf"(?:{plain[:-1]}@]|{_ENCODED})+"  # a colon in the first segment would end a scheme
    relative = rf"(?://{authority}{path}|/(?:{char}+{path})?|{first}{path}|){rest}"
    return absolute, f"(?:{absolute}|{relative})"


_URI, _URI_REFERENCE = _uri("")
_IRI, _IRI_REFERENCE = _uri(r"\u00a0-\ud7ff\uf900-\uffef\u{10000}-\u{dfffd}")
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_VARIABLE = rf"(?:[A-Za-z0-9_]|{_ENCODED})(?:\.?(?:[A-Za-z0-9_]|{_ENCODED}))*(?::[1-9]\d{{0,3}}|\*)?"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_HOST}|\[(?:{_IPV4}|IPv6:{_IPV6})\])",
    "hostname": rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*{_LABEL}",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": rf"(?:[^\x00-\x20\"%<>\\^`{{|}}\x7f]|{_ENCODED}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d{{0,8}})(?:#|{_POINTER})",
}
