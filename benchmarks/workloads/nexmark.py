"""Nexmark: an auction site's persons, auctions and bids, and its queries as views over the three tables.

The queries are batch queries: a window is a group, not a moment at which results are sent, so a view has one right
content after every batch. Where Nexmark leaves rows tied (the first of the highest bids, the last bid of a bidder),
`seq`, the position of an event among all events, decides. Processing time would differ from run to run, so q12 has
event time; q13's side input is an ordinary table, and q14's function is an expression. q6 is left out; `EXTRA` has the
queries beyond the 19 that are counted.

Columns, proportions (1 person : 3 auctions : 46 bids) and hot keys are those of Nexmark's generator, vectorised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks.workloads.columns import concat, digits, draw, pick, slices, table

TABLES: Final[dict[str, str]] = {
    "person": (
        "seq BIGINT, id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, "
        "date_time TIMESTAMP, extra STRING"
    ),
    "auction": (
        "seq BIGINT, id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, "
        "date_time TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING"
    ),
    "bid": (
        "seq BIGINT, auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time TIMESTAMP, "
        "extra STRING"
    ),
    "side_input": "key BIGINT, value STRING",
}

_RANKS: Final = (
    ("rank1", "price < 10000"),
    ("rank2", "price >= 10000 AND price < 1000000"),
    ("rank3", "price >= 1000000"),
)


def _counts(what: str, name: str) -> str:
    """Of everything, and by rank of price: how many there are."""
    of = [f"count({what}) AS total_{name}"]
    of += [f"count({what}) FILTER (WHERE {condition}) AS {rank}_{name}" for rank, condition in _RANKS]
    return ",\n  ".join(of)


_BIDS: Final = _counts("*", "bids")
_BIDS_BIDDERS_AUCTIONS: Final = ",\n  ".join(
    (_BIDS, _counts("DISTINCT bidder", "bidders"), _counts("DISTINCT auction", "auctions"))
)

QUERIES: Final[dict[str, str]] = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """\
SELECT p.name, p.city, p.state, a.id
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """\
SELECT category, avg(final) AS average
FROM (
  SELECT max(b.price) AS final, a.category
  FROM auction a JOIN bid b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires
  GROUP BY a.id, a.category
)
GROUP BY category""",
    "q5": """\
WITH counts AS (
  SELECT auction, count(*) AS num, window.start AS starttime, window.end AS endtime
  FROM bid
  GROUP BY auction, window(date_time, '10 seconds', '2 seconds')
)
SELECT c.auction, c.num, c.starttime, c.endtime
FROM counts c
JOIN (SELECT max(num) AS maxn, starttime, endtime FROM counts GROUP BY starttime, endtime) m
  ON c.starttime = m.starttime AND c.endtime = m.endtime AND c.num >= m.maxn""",
    "q7": """\
SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
FROM bid b
JOIN (
  SELECT max(price) AS maxprice, window.start AS starttime, window.end AS endtime
  FROM bid
  GROUP BY window(date_time, '10 seconds')
) m
  ON b.price = m.maxprice AND b.date_time >= m.starttime AND b.date_time < m.endtime""",
    "q8": """\
SELECT p.id, p.name, p.starttime
FROM (
  SELECT id, name, window.start AS starttime, window.end AS endtime
  FROM person
  GROUP BY id, name, window(date_time, '10 seconds')
) p
JOIN (
  SELECT seller, window.start AS starttime, window.end AS endtime
  FROM auction
  GROUP BY seller, window(date_time, '10 seconds')
) a
  ON p.id = a.seller AND p.starttime = a.starttime AND p.endtime = a.endtime""",
    "q9": """\
SELECT
  id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra,
  auction, bidder, price, bid_date_time, bid_extra
FROM (
  SELECT
    a.*, b.auction, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra,
    row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.seq) AS rownum
  FROM auction a JOIN bid b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires
)
WHERE rownum <= 1""",
    "q12": """\
SELECT bidder, count(*) AS bid_count, window.start AS starttime, window.end AS endtime
FROM bid
GROUP BY bidder, window(date_time, '10 seconds')""",
    "q13": """\
SELECT b.auction, b.bidder, b.price, b.date_time, s.value
FROM bid b JOIN side_input s ON b.auction % 10000 = s.key""",
    "q14": """\
SELECT
  auction, bidder, 0.908 * price AS price,
  CASE
    WHEN hour(date_time) >= 8 AND hour(date_time) <= 18 THEN 'dayTime'
    WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
    ELSE 'otherTime'
  END AS bid_time_type,
  date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"""\
SELECT
  date_format(date_time, 'yyyy-MM-dd') AS day,
  {_BIDS_BIDDERS_AUCTIONS}
FROM bid
GROUP BY date_format(date_time, 'yyyy-MM-dd')""",
    "q16": f"""\
SELECT
  channel,
  date_format(date_time, 'yyyy-MM-dd') AS day,
  max(date_format(date_time, 'HH:mm')) AS minute,
  {_BIDS_BIDDERS_AUCTIONS}
FROM bid
GROUP BY channel, date_format(date_time, 'yyyy-MM-dd')""",
    "q17": f"""\
SELECT
  auction,
  date_format(date_time, 'yyyy-MM-dd') AS day,
  {_BIDS},
  min(price) AS min_price,
  max(price) AS max_price,
  avg(price) AS avg_price,
  sum(price) AS sum_price
FROM bid
GROUP BY auction, date_format(date_time, 'yyyy-MM-dd')""",
    "q18": """\
SELECT auction, bidder, price, channel, url, date_time, extra
FROM (
  SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, seq DESC) AS rank_number
  FROM bid
)
WHERE rank_number <= 1""",
    "q19": """\
SELECT auction, bidder, price, channel, url, date_time, extra, rank_number
FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, seq) AS rank_number FROM bid)
WHERE rank_number <= 10""",
    "q20": """\
SELECT
  b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_date_time, b.extra AS bid_extra,
  a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS auction_date_time, a.expires, a.seller,
  a.category, a.extra AS auction_extra
FROM bid b JOIN auction a ON b.auction = a.id
WHERE a.category = 10""",
    "q22": """\
SELECT
  auction, bidder, price, channel,
  split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
FROM bid""",
}

EXTRA: Final[dict[str, str]] = {
    "q10": """\
SELECT
  auction, bidder, price, date_time, extra,
  date_format(date_time, 'yyyy-MM-dd') AS day, date_format(date_time, 'HH:mm') AS minute
FROM bid""",
    "q11": """\
SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime
FROM bid
GROUP BY bidder, session_window(date_time, '10 seconds')""",
    "q21": """\
SELECT auction, bidder, price, channel, channel_id
FROM (
  SELECT
    *,
    CASE lower(channel)
      WHEN 'apple' THEN '0'
      WHEN 'google' THEN '1'
      WHEN 'facebook' THEN '2'
      WHEN 'baidu' THEN '3'
      ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')
    END AS channel_id
  FROM bid
)
WHERE channel_id IS NOT NULL""",
}

RATE: Final = 10_000
"""Events in a second of event time, unless said otherwise."""

_START_MS: Final = 1_704_067_200_000  # 2024-01-01T00:00:00Z
_FIRST_ID: Final = 1000
_EPOCH: Final = 50  # events: 1 person, 3 auctions, 46 bids
_ACTIVE_PERSONS: Final = 1000
_IN_FLIGHT: Final = 100  # auctions
_HOT_GROUP: Final = 100  # of so many keys, one is hot at a time
_NAMES: Final = "Peter Paul Luke John Saul Vicky Kate Julie Sarah Deiter Walter"
_SURNAMES: Final = "Shultz Abrams Spencer White Bartels Walton Smith Jones Noris"
_CITIES: Final = "Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne"
_STATES: Final = "AZ CA ID OR WA WY"
_HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
_CHANNELS: Final = 10_000


def _text(rng: np.random.Generator, rows: int, length: int) -> pa.Array:
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    pool = letters[rng.integers(0, len(letters), rows * length)]
    return slices(pool, np.arange(rows) * length, np.full(rows, length))


def _times(ms: np.ndarray) -> pa.Array:
    return pa.array((ms + _START_MS) * 1000).cast(pa.timestamp("us", tz="UTC"))


def _prices(rng: np.random.Generator, rows: int) -> np.ndarray:
    return (10 ** (rng.random(rows) * 6) * 100).astype(np.int64)


def _keys(rng: np.random.Generator, last: np.ndarray, active: int, cold: float) -> np.ndarray:
    """A key a row, of those up to `last`: the hot one of the moment or, for the share `cold`, any active one."""
    recent = last - (rng.random(len(last)) * np.minimum(last + 1, active)).astype(np.int64)
    return np.where(rng.random(len(last)) < cold, recent, last // _HOT_GROUP * _HOT_GROUP) + _FIRST_ID


def _persons(rng: np.random.Generator, seq: np.ndarray, ms: np.ndarray) -> pa.Table:
    rows = len(seq)
    columns = {
        "seq": seq,
        "id": seq // _EPOCH + _FIRST_ID,
        "name": concat(draw(rng, _NAMES.split(), rows), draw(rng, _SURNAMES.split(), rows), by=" "),
        "email_address": concat(_text(rng, rows, 7), "@", _text(rng, rows, 5), ".com"),
        "credit_card": concat(*(digits(rng.integers(0, 10_000, rows), 4) for _ in range(4)), by=" "),
        "city": draw(rng, _CITIES.split(","), rows),
        "state": draw(rng, _STATES.split(), rows),
        "date_time": _times(ms),
        "extra": _text(rng, rows, 16),
    }
    return table(TABLES["person"], columns)


def _auctions(rng: np.random.Generator, seq: np.ndarray, ms: np.ndarray, rate: int) -> pa.Table:
    rows = len(seq)
    initial = _prices(rng, rows)
    horizon = max(1, _IN_FLIGHT * _EPOCH * 1000 // (3 * rate))  # ms in which as many auctions begin as are in flight
    length = 1 + rng.integers(0, 2 * horizon, rows)
    columns = {
        "seq": seq,
        "id": seq // _EPOCH * 3 + seq % _EPOCH - 1 + _FIRST_ID,
        "item_name": _text(rng, rows, 12),
        "description": _text(rng, rows, 30),
        "initial_bid": initial,
        "reserve": initial + _prices(rng, rows),
        "date_time": _times(ms),
        "expires": _times(ms + length),
        "seller": _keys(rng, seq // _EPOCH, _ACTIVE_PERSONS, 1 / 4),
        "category": rng.integers(10, 15, rows),
        "extra": _text(rng, rows, 15),
    }
    return table(TABLES["auction"], columns)


def _bids(rng: np.random.Generator, seq: np.ndarray, ms: np.ndarray) -> pa.Table:
    rows, hot = len(seq), len(_HOT_CHANNELS)
    numbers = range(hot + _CHANNELS)
    names = [*_HOT_CHANNELS, *(f"channel-{i}" for i in range(_CHANNELS))]
    urls = [
        f"https://www.nexmark.com/{i % 37:x}/{i % 91:x}/{i % 53:x}/item.htm?query=1&channel_id={i}" for i in numbers
    ]
    channel = np.where(rng.random(rows) < 0.5, rng.integers(0, hot, rows), rng.integers(hot, len(names), rows))
    columns = {
        "seq": seq,
        "auction": _keys(rng, seq // _EPOCH * 3 + 2, _IN_FLIGHT, 1 / 2),
        "bidder": _keys(rng, seq // _EPOCH, _ACTIVE_PERSONS, 1 / 4),
        "price": _prices(rng, rows),
        "channel": pick(names, channel),
        "url": pick(urls, channel),
        "date_time": _times(ms),
        "extra": _text(rng, rows, 15),
    }
    return table(TABLES["bid"], columns)


def side_input() -> pa.Table:
    """The table that q13 looks bids up in."""
    keys = np.arange(10_000)
    return table(TABLES["side_input"], {"key": keys, "value": concat("value-", digits(keys, 4))})


def tables(events: int, seed: int = 3, rate: int = RATE) -> dict[str, pa.Table]:
    """The first so many events, by table, `side_input` included. A lower rate spreads them over more windows."""
    seq = np.arange(events)
    ms, at = seq * 1000 // rate, seq % _EPOCH
    streams = [np.random.default_rng([seed, i]) for i in range(3)]
    person, auction, bid = at == 0, (at >= 1) & (at <= 3), at >= 4
    return {
        "person": _persons(streams[0], seq[person], ms[person]),
        "auction": _auctions(streams[1], seq[auction], ms[auction], rate),
        "bid": _bids(streams[2], seq[bid], ms[bid]),
        "side_input": side_input(),
    }


def generate(events: int, seed: int = 3, batch: int = 10_000, rate: int = RATE) -> Iterator[dict[str, pa.Table]]:
    """The same events in batches, in their order; without `side_input`, which does not change."""
    whole = tables(events, seed, rate)
    del whole["side_input"]
    seqs = {name: rows["seq"].to_numpy() for name, rows in whole.items()}
    for begin in range(0, events, batch):
        cuts = {name: np.searchsorted(seq, [begin, begin + batch]) for name, seq in seqs.items()}
        yield {name: rows.slice(cuts[name][0], cuts[name][1] - cuts[name][0]) for name, rows in whole.items()}
