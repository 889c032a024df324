"""TPC-H: eight tables, 22 queries, data at any scale, and the refresh streams.

The queries carry the validation values of the specification. Where it lets rows tie at a LIMIT (q3, q10, q18), the key
is added to ORDER BY, so that there is one right answer; q15's view is a common table expression.

The data is our own, drawn with numpy: no dependency, the same on every machine. Cardinalities, keys, value ranges, word
lists and how columns depend on each other are the specification's; the draws are not dbgen's, so published answers do
not apply. Two things differ so that every query finds rows at a scale of 0.01: one order in a thousand is large (q18),
and there is always a supplier with complaints (q16).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.workloads import read_queries
from benchmarks.workloads.columns import concat, dates, decimals, digits, draw, pick, slices, table

TABLES: Final[dict[str, str]] = {
    "region": "r_regionkey BIGINT, r_name STRING, r_comment STRING",
    "nation": "n_nationkey BIGINT, n_name STRING, n_regionkey BIGINT, n_comment STRING",
    "supplier": (
        "s_suppkey BIGINT, s_name STRING, s_address STRING, s_nationkey BIGINT, s_phone STRING, "
        "s_acctbal DECIMAL(15,2), s_comment STRING"
    ),
    "customer": (
        "c_custkey BIGINT, c_name STRING, c_address STRING, c_nationkey BIGINT, c_phone STRING, "
        "c_acctbal DECIMAL(15,2), c_mktsegment STRING, c_comment STRING"
    ),
    "part": (
        "p_partkey BIGINT, p_name STRING, p_mfgr STRING, p_brand STRING, p_type STRING, p_size INT, "
        "p_container STRING, p_retailprice DECIMAL(15,2), p_comment STRING"
    ),
    "partsupp": (
        "ps_partkey BIGINT, ps_suppkey BIGINT, ps_availqty INT, ps_supplycost DECIMAL(15,2), ps_comment STRING"
    ),
    "orders": (
        "o_orderkey BIGINT, o_custkey BIGINT, o_orderstatus STRING, o_totalprice DECIMAL(15,2), o_orderdate DATE, "
        "o_orderpriority STRING, o_clerk STRING, o_shippriority INT, o_comment STRING"
    ),
    "lineitem": (
        "l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber INT, l_quantity DECIMAL(15,2), "
        "l_extendedprice DECIMAL(15,2), l_discount DECIMAL(15,2), l_tax DECIMAL(15,2), l_returnflag STRING, "
        "l_linestatus STRING, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE, l_shipinstruct STRING, "
        "l_shipmode STRING, l_comment STRING"
    ),
}

QUERIES: Final = read_queries(Path(__file__).parent / "tpch")

Tick = dict[str, tuple[pa.Table, pa.Table]]
"""By table: the rows that a tick inserts, and those that it deletes."""

_REGIONS: Final = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_NATIONS: Final = (  # with the region of each
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3),
    ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4),
    ("KENYA", 0), ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4),
    ("VIETNAM", 2), ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
_SEGMENTS: Final = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
_PRIORITIES: Final = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_INSTRUCTIONS: Final = ("COLLECT COD", "DELIVER IN PERSON", "NONE", "TAKE BACK RETURN")
_MODES: Final = ("AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK")
_TYPES: Final = tuple(
    f"{size} {finish} {metal}"
    for size in ("ECONOMY", "LARGE", "MEDIUM", "PROMO", "SMALL", "STANDARD")
    for finish in ("ANODIZED", "BRUSHED", "BURNISHED", "PLATED", "POLISHED")
    for metal in ("BRASS", "COPPER", "NICKEL", "STEEL", "TIN")
)
_CONTAINERS: Final = tuple(
    f"{size} {kind}"
    for size in ("JUMBO", "LG", "MED", "SM", "WRAP")
    for kind in ("BAG", "BOX", "CAN", "CASE", "DRUM", "JAR", "PACK", "PKG")
)
_COLOURS: Final = (
    "almond antique aquamarine azure beige bisque black blanched blue blush brown burlywood burnished chartreuse "
    "chiffon chocolate coral cornflower cornsilk cream cyan dark deep dim dodger drab firebrick floral forest frosted "
    "gainsboro ghost goldenrod green grey honeydew hot indian ivory khaki lace lavender lawn lemon light lime linen "
    "magenta maroon medium metallic midnight mint misty moccasin navajo navy olive orange orchid pale papaya peach "
    "peru pink plum powder puff purple red rose rosy royal saddle salmon sandy seashell sienna sky slate smoke snow "
    "spring steel tan thistle tomato turquoise violet wheat white yellow"
)
_NOUNS: Final = (
    "packages requests accounts deposits foxes ideas theodolites instructions dependencies excuses platelets "
    "asymptotes courts dolphins multipliers sauternes warthogs frets dinos attainments somas patterns forges braids"
)
_VERBS: Final = (
    "sleep wake are cajole haggle nag use boost affix detect integrate maintain nod was lose sublate solve thrash "
    "promise engage hinder print x-ray breach eat grow impress mold poach serve run dazzle snooze doze unwind kindle"
)
_ADJECTIVES: Final = (
    "furious sly careful blithe quick fluffy slow quiet ruthless thin close dogged daring brave stealthy permanent "
    "enticing idle busy regular final ironic even bold silent special pending unusual express"
)
_ADVERBS: Final = "furiously slyly carefully blithely quickly fluffily slowly quietly ruthlessly thinly closely"
_PREPOSITIONS: Final = "about above according across after against along among around at before beneath beside"

_FIRST_DAY: Final = int(np.datetime64("1992-01-01").astype(int))
_LAST_ORDER: Final = int(np.datetime64("1998-12-31").astype(int)) - 151
_TODAY: Final = int(np.datetime64("1995-06-17").astype(int))  # what was received by then has been returned or kept
_LARGE: Final = 1000  # one order in so many


class _Sizes(NamedTuple):
    """What the foreign keys of an order range over."""

    customers: int
    parts: int
    suppliers: int


# ------------------------------------------------------------------------------------------------- columns


@cache
def _pool() -> np.ndarray:
    """The text that all comments are pieces of, as bytes."""
    rng = np.random.default_rng(0)
    sentences = 20_000
    order = (_ADVERBS, _ADJECTIVES, _NOUNS, _VERBS, _PREPOSITIONS, "the", _ADJECTIVES, _NOUNS)
    words = [draw(rng, kind.split(), sentences) for kind in order]
    return np.frombuffer(". ".join(concat(*words, by=" ").to_pylist()).encode(), np.uint8)


def _comments(rng: np.random.Generator, rows: int, shortest: int, longest: int) -> pa.Array:
    lengths = rng.integers(shortest, longest + 1, rows)
    return slices(_pool(), rng.integers(0, len(_pool()) - longest, rows), lengths)


def _addresses(rng: np.random.Generator, rows: int) -> pa.Array:
    letters = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ, ", np.uint8)
    pool = letters[rng.integers(0, len(letters), 100_000)]
    return slices(pool, rng.integers(0, len(pool) - 40, rows), rng.integers(10, 41, rows))


def _phones(rng: np.random.Generator, nations: np.ndarray) -> pa.Array:
    rows = len(nations)
    local = [digits(rng.integers(low, high, rows), 3) for low, high in ((100, 1000), (100, 1000), (1000, 10_000))]
    return concat(digits(nations + 10, 2), *local, by="-")


def _balances(rng: np.random.Generator, rows: int) -> pa.Array:
    return decimals(rng.integers(-99_999, 1_000_000, rows))


def _retail_cents(part: np.ndarray) -> np.ndarray:
    return 90_000 + part // 10 % 20_001 + 100 * (part % 1000)


def _supplier_of(part: np.ndarray, which: np.ndarray, suppliers: int) -> np.ndarray:
    """One of a part's four suppliers. Unlike dbgen's formula it gives four different ones at every scale."""
    return (part + which * (suppliers // 4) + (part - 1) // suppliers) % suppliers + 1


# ------------------------------------------------------------------------------------------------- tables


def _places(rng: np.random.Generator) -> dict[str, pa.Table]:
    regions, nations = np.arange(len(_REGIONS)), np.arange(len(_NATIONS))
    return {
        "region": table(
            TABLES["region"],
            {"r_regionkey": regions, "r_name": list(_REGIONS), "r_comment": _comments(rng, len(regions), 31, 115)},
        ),
        "nation": table(
            TABLES["nation"],
            {
                "n_nationkey": nations,
                "n_name": [name for name, _ in _NATIONS],
                "n_regionkey": [region for _, region in _NATIONS],
                "n_comment": _comments(rng, len(nations), 31, 114),
            },
        ),
    }


def _supplier(rng: np.random.Generator, rows: int) -> pa.Table:
    keys, nations = np.arange(1, rows + 1), rng.integers(0, len(_NATIONS), rows)
    comments = _comments(rng, rows, 25, 60)
    marked = max(1, rows // 2000)
    kind = np.zeros(rows, np.int64)
    kind[rng.choice(rows, 2 * marked, replace=False)] = np.repeat([1, 2], marked)
    said = pick(["", " Customer quick Complaints", " Customer bold Recommends"], kind)
    return table(
        TABLES["supplier"],
        {
            "s_suppkey": keys,
            "s_name": concat("Supplier#", digits(keys, 9)),
            "s_address": _addresses(rng, rows),
            "s_nationkey": nations,
            "s_phone": _phones(rng, nations),
            "s_acctbal": _balances(rng, rows),
            "s_comment": concat(comments, said),
        },
    )


def _customer(rng: np.random.Generator, rows: int) -> pa.Table:
    keys, nations = np.arange(1, rows + 1), rng.integers(0, len(_NATIONS), rows)
    return table(
        TABLES["customer"],
        {
            "c_custkey": keys,
            "c_name": concat("Customer#", digits(keys, 9)),
            "c_address": _addresses(rng, rows),
            "c_nationkey": nations,
            "c_phone": _phones(rng, nations),
            "c_acctbal": _balances(rng, rows),
            "c_mktsegment": draw(rng, _SEGMENTS, rows),
            "c_comment": _comments(rng, rows, 29, 116),
        },
    )


def _part(rng: np.random.Generator, rows: int) -> pa.Table:
    keys = np.arange(1, rows + 1)
    colours = _COLOURS.split()
    chosen = rng.permuted(np.tile(np.arange(len(colours), dtype=np.int8), (rows, 1)), axis=1)[:, :5]
    maker = rng.integers(1, 6, rows)
    return table(
        TABLES["part"],
        {
            "p_partkey": keys,
            "p_name": concat(*(pick(colours, chosen[:, i]) for i in range(5)), by=" "),
            "p_mfgr": concat("Manufacturer#", digits(maker, 1)),
            "p_brand": concat("Brand#", digits(maker * 10 + rng.integers(1, 6, rows), 2)),
            "p_type": draw(rng, _TYPES, rows),
            "p_size": rng.integers(1, 51, rows, np.int32),
            "p_container": draw(rng, _CONTAINERS, rows),
            "p_retailprice": decimals(_retail_cents(keys)),
            "p_comment": _comments(rng, rows, 5, 22),
        },
    )


def _partsupp(rng: np.random.Generator, parts: int, suppliers: int) -> pa.Table:
    part, which = np.repeat(np.arange(1, parts + 1), 4), np.tile(np.arange(4), parts)
    return table(
        TABLES["partsupp"],
        {
            "ps_partkey": part,
            "ps_suppkey": _supplier_of(part, which, suppliers),
            "ps_availqty": rng.integers(1, 10_000, len(part), np.int32),
            "ps_supplycost": decimals(rng.integers(100, 100_001, len(part))),
            "ps_comment": _comments(rng, len(part), 49, 198),
        },
    )


def _orders(rng: np.random.Generator, keys: np.ndarray, sizes: _Sizes) -> tuple[pa.Table, pa.Table]:
    """Orders with these keys and their lines, in the order of the keys."""
    rows = len(keys)
    large = rng.random(rows) < 1 / _LARGE
    ordered = rng.integers(_FIRST_DAY, _LAST_ORDER + 1, rows)
    count = np.where(large, 7, rng.integers(1, 8, rows))
    of = np.repeat(np.arange(rows), count)  # the order that each line belongs to
    first = np.cumsum(count) - count
    lines = len(of)

    part = rng.integers(1, sizes.parts + 1, lines)
    quantity = np.where(large[of], rng.integers(44, 51, lines), rng.integers(1, 51, lines))
    price = quantity * _retail_cents(part)
    discount, tax = rng.integers(0, 11, lines), rng.integers(0, 9, lines)
    shipped = ordered[of] + rng.integers(1, 122, lines)
    received = shipped + rng.integers(1, 31, lines)
    still_open = shipped > _TODAY
    returned = np.where(received <= _TODAY, rng.integers(0, 2, lines), 2)
    charged = price * (100 + tax) * (100 - discount) // 10_000
    lineitem = {
        "l_orderkey": keys[of],
        "l_partkey": part,
        "l_suppkey": _supplier_of(part, rng.integers(0, 4, lines), sizes.suppliers),
        "l_linenumber": (np.arange(lines) - first[of] + 1).astype(np.int32),
        "l_quantity": decimals(quantity * 100),
        "l_extendedprice": decimals(price),
        "l_discount": decimals(discount),
        "l_tax": decimals(tax),
        "l_returnflag": pick(["R", "A", "N"], returned),
        "l_linestatus": pick(["F", "O"], still_open.astype(np.int8)),
        "l_shipdate": dates(shipped),
        "l_commitdate": dates(ordered[of] + rng.integers(30, 91, lines)),
        "l_receiptdate": dates(received),
        "l_shipinstruct": draw(rng, _INSTRUCTIONS, lines),
        "l_shipmode": draw(rng, _MODES, lines),
        "l_comment": _comments(rng, lines, 10, 43),
    }

    opened = np.add.reduceat(still_open.astype(np.int64), first)
    orders = {
        "o_orderkey": keys,
        "o_custkey": _ordering_customer(rng.integers(0, sizes.customers - sizes.customers // 3, rows)),
        "o_orderstatus": pick(["F", "O", "P"], np.where(opened == 0, 0, np.where(opened == count, 1, 2))),
        "o_totalprice": decimals(np.add.reduceat(charged, first)),
        "o_orderdate": dates(ordered),
        "o_orderpriority": draw(rng, _PRIORITIES, rows),
        "o_clerk": concat("Clerk#", digits(rng.integers(1, max(2, sizes.customers // 150 + 1), rows), 9)),
        "o_shippriority": np.zeros(rows, np.int32),
        "o_comment": _comments(rng, rows, 19, 78),
    }
    return table(TABLES["orders"], orders), table(TABLES["lineitem"], lineitem)


def _ordering_customer(index: np.ndarray) -> np.ndarray:
    """Customers whose key is a multiple of three never order (q13, q22)."""
    return index // 2 * 3 + index % 2 + 1


def generate(scale: float) -> dict[str, pa.Table]:
    """All tables; a scale of 1 has 1.5 million orders. Equal scales give equal tables."""
    sizes = _Sizes(*(max(10, round(size * scale)) for size in (150_000, 200_000, 10_000)))
    orders = np.arange(max(10, round(1_500_000 * scale)))
    streams = [np.random.default_rng([19_920_101, i]) for i in range(6)]
    made = _places(streams[0])
    made["supplier"] = _supplier(streams[1], sizes.suppliers)
    made["customer"] = _customer(streams[2], sizes.customers)
    made["part"] = _part(streams[3], sizes.parts)
    made["partsupp"] = _partsupp(streams[4], sizes.parts, sizes.suppliers)
    keys = orders // 8 * 32 + orders % 8 + 1  # the first 8 of each 32; the refresh streams have the others
    made["orders"], made["lineitem"] = _orders(streams[5], keys, sizes)
    return made


# ------------------------------------------------------------------------------------------------- refresh


class _Segment:
    """Orders that came together, in the order of their keys, and where the lines of each begin."""

    def __init__(self, orders: pa.Table, lines: pa.Table) -> None:
        self.orders, self.lines = orders, lines
        keys = orders["o_orderkey"].to_numpy()
        owners = lines["l_orderkey"].to_numpy()
        if np.any(keys[1:] <= keys[:-1]) or np.any(owners[1:] < owners[:-1]):
            raise ValueError("orders and lineitem must be in the order of their keys, as `generate` gives them")
        self.first = np.append(np.searchsorted(owners, keys), len(owners))

    def rows(self, index: np.ndarray) -> tuple[pa.Table, pa.Table]:
        index = np.sort(index)
        count = self.first[index + 1] - self.first[index]
        begin = np.repeat(self.first[index] - (np.cumsum(count) - count), count)
        return self.orders.take(pa.array(index)), self.lines.take(pa.array(begin + np.arange(len(begin))))


def refresh(tables: dict[str, pa.Table], fraction: float, seed: int) -> Iterator[Tick]:
    """The refresh streams, without end: each tick inserts new orders with their lines, and deletes as many that exist.

    `tables` is what `generate` gave; `fraction` is of its orders. A tick may delete what an earlier one inserted; keys
    are never used again.
    """
    rng = np.random.default_rng(seed)
    sizes = _Sizes(*(len(tables[name]) for name in ("customer", "part", "supplier")))
    segments = [_Segment(tables["orders"], tables["lineitem"])]
    count = max(1, round(fraction * len(tables["orders"])))
    live = np.zeros((len(tables["orders"]), 2), np.int64)  # segment, and row in it
    live[:, 1] = np.arange(len(live))
    used = 0
    while True:
        gone = rng.choice(len(live), count, replace=False)
        deleted = [
            segments[segment].rows(live[gone, 1][live[gone, 0] == segment]) for segment in np.unique(live[gone, 0])
        ]
        fresh = np.arange(used, used + count)
        used += count
        new = _Segment(*_orders(rng, fresh // 24 * 32 + 8 + fresh % 24 + 1, sizes))
        arrived = np.stack([np.full(count, len(segments)), np.arange(count)], axis=1)
        segments.append(new)
        live = np.concatenate([np.delete(live, gone, axis=0), arrived])
        yield {
            "orders": (new.orders, pa.concat_tables([orders for orders, _ in deleted]).combine_chunks()),
            "lineitem": (new.lines, pa.concat_tables([lines for _, lines in deleted]).combine_chunks()),
        }
