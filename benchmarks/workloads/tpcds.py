"""TPC-DS: 24 tables, and its 99 queries in Spark's SQL (103 statements: four of them have two parts).

The texts of the queries are not kept here. They are the output of the benchmark's own generator, which the package
lakebench carries (dsqgen 4.0.0 in qualification mode); `queries` reads its files, or those of a folder of the same kind
that the variable TPCDS_QUERIES names, and puts the few forms that Spark does not know into those that it does:
`SELECT TOP n` becomes LIMIT, `+ n days` an interval, and a name in double quotes one in backticks. Nothing of lakebench
is imported. Keys are INT and strings STRING, without a length: padding would make no difference to a plan.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.workloads import read_queries


def _ddl(prefix: str, text: str) -> str:
    """`a b:S` → `prefix_a INT, prefix_b STRING`: a column is INT unless it says otherwise."""
    columns = (column.partition(":") for column in text.split())
    types = {"": "INT", "$": "DECIMAL(7,2)", "%": "DECIMAL(5,2)", "S": "STRING", "D": "DATE"}
    return ", ".join(f"{prefix}_{name} {types[kind]}" for name, _, kind in columns)


_ADDRESS: Final = (
    "street_number:S street_name:S street_type:S suite_number:S city:S county:S state:S zip:S country:S gmt_offset:%"
)
_REVISION: Final = "rec_start_date:D rec_end_date:D"

TABLES: Final[dict[str, str]] = {
    "call_center": _ddl(
        "cc",
        f"call_center_sk call_center_id:S {_REVISION} closed_date_sk open_date_sk name:S class:S employees sq_ft "
        "hours:S manager:S mkt_id mkt_class:S mkt_desc:S market_manager:S division division_name:S company "
        f"company_name:S {_ADDRESS} tax_percentage:%",
    ),
    "catalog_page": _ddl(
        "cp",
        "catalog_page_sk catalog_page_id:S start_date_sk end_date_sk department:S catalog_number catalog_page_number "
        "description:S type:S",
    ),
    "catalog_returns": _ddl(
        "cr",
        "returned_date_sk returned_time_sk item_sk refunded_customer_sk refunded_cdemo_sk refunded_hdemo_sk "
        "refunded_addr_sk returning_customer_sk returning_cdemo_sk returning_hdemo_sk returning_addr_sk call_center_sk "
        "catalog_page_sk ship_mode_sk warehouse_sk reason_sk order_number return_quantity return_amount:$ return_tax:$ "
        "return_amt_inc_tax:$ fee:$ return_ship_cost:$ refunded_cash:$ reversed_charge:$ store_credit:$ net_loss:$",
    ),
    "catalog_sales": _ddl(
        "cs",
        "sold_date_sk sold_time_sk ship_date_sk bill_customer_sk bill_cdemo_sk bill_hdemo_sk bill_addr_sk "
        "ship_customer_sk ship_cdemo_sk ship_hdemo_sk ship_addr_sk call_center_sk catalog_page_sk ship_mode_sk "
        "warehouse_sk item_sk promo_sk order_number quantity wholesale_cost:$ list_price:$ sales_price:$ "
        "ext_discount_amt:$ ext_sales_price:$ ext_wholesale_cost:$ ext_list_price:$ ext_tax:$ coupon_amt:$ "
        "ext_ship_cost:$ net_paid:$ net_paid_inc_tax:$ net_paid_inc_ship:$ net_paid_inc_ship_tax:$ net_profit:$",
    ),
    "customer": _ddl(
        "c",
        "customer_sk customer_id:S current_cdemo_sk current_hdemo_sk current_addr_sk first_shipto_date_sk "
        "first_sales_date_sk salutation:S first_name:S last_name:S preferred_cust_flag:S birth_day birth_month "
        "birth_year birth_country:S login:S email_address:S last_review_date_sk",
    ),
    "customer_address": _ddl("ca", f"address_sk address_id:S {_ADDRESS} location_type:S"),
    "customer_demographics": _ddl(
        "cd",
        "demo_sk gender:S marital_status:S education_status:S purchase_estimate credit_rating:S dep_count "
        "dep_employed_count dep_college_count",
    ),
    "date_dim": _ddl(
        "d",
        "date_sk date_id:S date:D month_seq week_seq quarter_seq year dow moy dom qoy fy_year fy_quarter_seq "
        "fy_week_seq day_name:S quarter_name:S holiday:S weekend:S following_holiday:S first_dom last_dom "
        "same_day_ly same_day_lq current_day:S current_week:S current_month:S current_quarter:S current_year:S",
    ),
    "household_demographics": _ddl("hd", "demo_sk income_band_sk buy_potential:S dep_count vehicle_count"),
    "income_band": _ddl("ib", "income_band_sk lower_bound upper_bound"),
    "inventory": _ddl("inv", "date_sk item_sk warehouse_sk quantity_on_hand"),
    "item": _ddl(
        "i",
        f"item_sk item_id:S {_REVISION} item_desc:S current_price:$ wholesale_cost:$ brand_id brand:S class_id class:S "
        "category_id category:S manufact_id manufact:S size:S formulation:S color:S units:S container:S manager_id "
        "product_name:S",
    ),
    "promotion": _ddl(
        "p",
        "promo_sk promo_id:S start_date_sk end_date_sk item_sk cost:$ response_target promo_name:S channel_dmail:S "
        "channel_email:S channel_catalog:S channel_tv:S channel_radio:S channel_press:S channel_event:S channel_demo:S "
        "channel_details:S purpose:S discount_active:S",
    ),
    "reason": _ddl("r", "reason_sk reason_id:S reason_desc:S"),
    "ship_mode": _ddl("sm", "ship_mode_sk ship_mode_id:S type:S code:S carrier:S contract:S"),
    "store": _ddl(
        "s",
        f"store_sk store_id:S {_REVISION} closed_date_sk store_name:S number_employees floor_space hours:S manager:S "
        "market_id geography_class:S market_desc:S market_manager:S division_id division_name:S company_id "
        f"company_name:S {_ADDRESS} tax_precentage:%",  # so spelt in the specification
    ),
    "store_returns": _ddl(
        "sr",
        "returned_date_sk return_time_sk item_sk customer_sk cdemo_sk hdemo_sk addr_sk store_sk reason_sk "
        "ticket_number return_quantity return_amt:$ return_tax:$ return_amt_inc_tax:$ fee:$ return_ship_cost:$ "
        "refunded_cash:$ reversed_charge:$ store_credit:$ net_loss:$",
    ),
    "store_sales": _ddl(
        "ss",
        "sold_date_sk sold_time_sk item_sk customer_sk cdemo_sk hdemo_sk addr_sk store_sk promo_sk ticket_number "
        "quantity wholesale_cost:$ list_price:$ sales_price:$ ext_discount_amt:$ ext_sales_price:$ "
        "ext_wholesale_cost:$ ext_list_price:$ ext_tax:$ coupon_amt:$ net_paid:$ net_paid_inc_tax:$ net_profit:$",
    ),
    "time_dim": _ddl("t", "time_sk time_id:S time hour minute second am_pm:S shift:S sub_shift:S meal_time:S"),
    "warehouse": _ddl("w", f"warehouse_sk warehouse_id:S warehouse_name:S warehouse_sq_ft {_ADDRESS}"),
    "web_page": _ddl(
        "wp",
        f"web_page_sk web_page_id:S {_REVISION} creation_date_sk access_date_sk autogen_flag:S customer_sk url:S "
        "type:S char_count link_count image_count max_ad_count",
    ),
    "web_returns": _ddl(
        "wr",
        "returned_date_sk returned_time_sk item_sk refunded_customer_sk refunded_cdemo_sk refunded_hdemo_sk "
        "refunded_addr_sk returning_customer_sk returning_cdemo_sk returning_hdemo_sk returning_addr_sk web_page_sk "
        "reason_sk order_number return_quantity return_amt:$ return_tax:$ return_amt_inc_tax:$ fee:$ "
        "return_ship_cost:$ refunded_cash:$ reversed_charge:$ account_credit:$ net_loss:$",
    ),
    "web_sales": _ddl(
        "ws",
        "sold_date_sk sold_time_sk ship_date_sk item_sk bill_customer_sk bill_cdemo_sk bill_hdemo_sk bill_addr_sk "
        "ship_customer_sk ship_cdemo_sk ship_hdemo_sk ship_addr_sk web_page_sk web_site_sk ship_mode_sk warehouse_sk "
        "promo_sk order_number quantity wholesale_cost:$ list_price:$ sales_price:$ ext_discount_amt:$ "
        "ext_sales_price:$ ext_wholesale_cost:$ ext_list_price:$ ext_tax:$ coupon_amt:$ ext_ship_cost:$ net_paid:$ "
        "net_paid_inc_tax:$ net_paid_inc_ship:$ net_paid_inc_ship_tax:$ net_profit:$",
    ),
    "web_site": _ddl(
        "web",
        f"site_sk site_id:S {_REVISION} name:S open_date_sk close_date_sk class:S manager:S mkt_id mkt_class:S "
        f"mkt_desc:S market_manager:S company_id company_name:S {_ADDRESS} tax_percentage:%",
    ),
}

_IN_PACKAGE: Final = Path("benchmarks", "tpcds", "resources", "queries", "canonical", "sf1000")


def find_queries() -> Path | None:
    """The folder with the texts, if there is one on this machine."""
    named = os.environ.get("TPCDS_QUERIES")
    if named:
        return Path(named)
    package = find_spec("lakebench")
    for root in (package.submodule_search_locations or ()) if package else ():
        if (Path(root) / _IN_PACKAGE).is_dir():
            return Path(root) / _IN_PACKAGE
    return None


def queries(folder: Path | None = None) -> dict[str, str]:
    """All queries in Spark's SQL, by name: q1, …, q14a, q14b, …, q99."""
    folder = folder or find_queries()
    if folder is None:
        raise FileNotFoundError(
            "no texts of the TPC-DS queries: install lakebench (pip install --no-deps lakebench), "
            "or name a folder with q1.sql … q99.sql in TPCDS_QUERIES"
        )
    return {name: in_spark(text) for name, text in read_queries(folder).items()}


def in_spark(text: str) -> str:
    """A statement as dsqgen writes it, in Spark's SQL."""
    text = re.sub(r"--.*", "", text).strip().rstrip(";").rstrip()
    text = re.sub(r"([+-])\s*(\d+)\s+days\b", r"\1 INTERVAL '\2' DAY", text, flags=re.IGNORECASE)
    text = re.sub(r'"([^"\n]*)"', r"`\1`", text)
    top = re.search(r"\bselect\s+top\s+(\d+)\b", text, flags=re.IGNORECASE)
    if top is None:
        return text
    before = text[: top.start()]
    if before.count("(") != before.count(")"):
        raise ValueError(f"TOP inside of a subquery: {top[0]}")
    return f"{before}select{text[top.end() :]}\nlimit {top[1]}"
