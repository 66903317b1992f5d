"""Every statement that is sent to PostgreSQL, written for one schema."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.resources import files

from .postgres_rows import CHECKPOINT, ENTRY, THREAD, WRITE

VERSION = 1  # of the tables and functions

_ARGUMENTS = ", ".join(f"${place}" for place in range(1, 40))  # of save_1
# The newest record of a namespace: its place by the index alone, whatever the planner knows of the table; then, of
# records that have the same place because stores were merged, the one with the greatest id.
_NEWEST = """
        select x.* from {schema}.checkpoint x
        where x.thread = t.key and x.space = {space} {condition} and (x.epoch, x.seq) = (
            select y.epoch, y.seq from {schema}.checkpoint y
            where y.thread = t.key and y.space = {space} {inner} order by y.epoch desc, y.seq desc limit 1
        )
        order by x.id desc limit 1
"""
_LISTED = "(t.checkpoints > 0 or t.writes > 0 or t.info is not null)"

# One reading: kind 0 the checkpoint, kind 1 its chunks and those of its writes, kind 2 its writes. All in one
# snapshot. $3, $4: what the reader has at hand. $5: whether it wants chunks at all.
_READ = f"""
with t as materialized (select key, generation from {{schema}}.thread where digest = $1),
c as materialized (
    select x.* from t cross join lateral ({{record}}) x
),
w as materialized (select w.* from c join {{schema}}.write w on w.thread = c.thread and w.pair = c.name)
select 0::bigint, t.generation, {CHECKPOINT} from t left join c on true
union all
select 1, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, k.name, k.data, null
from c
cross join generate_series(
    1, case when not $5::boolean or (c.id = $3::text and c.chunks = $4::bytea) then 0 else octet_length(c.chunks) end, 16
) n
cross join lateral (
    select k.name, k.data from {{schema}}.chunk k where k.thread = c.thread and k.name = substr(c.chunks, n, 16) limit 1
) k
union all
select 2, null, w.namespace, w.checkpoint, w.task, w.channel, w.path, null,
    w.idx, w.epoch, w.fence, w.revision, null, null, null, null, w.chunks, w.body, null from w
union all
select 1, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, k.name, k.data, null
from w
cross join generate_series(1, case when $5::boolean then octet_length(w.chunks) else 0 end, 16) n
cross join lateral (
    select k.name, k.data from {{schema}}.chunk k where k.thread = w.thread and k.name = substr(w.chunks, n, 16) limit 1
) k
"""

_HISTORY = f"""
select t.generation, {CHECKPOINT} from {{schema}}.thread t left join lateral (
    select x.* from {{schema}}.checkpoint x
    where x.thread = t.key {{condition}} and (x.epoch, x.seq) <= ($2::bigint, $3::bigint)
        and (x.epoch, x.seq, x.id) < ($2::bigint, $3::bigint, $4::text) and ($5::text is null or x.run = $5::text)
    order by x.epoch desc, x.seq desc fetch first ($6::bigint) rows with ties
) c on true
where t.digest = $1::bytea
"""

_THREADS = f"""
select {THREAD}, {CHECKPOINT} from {{schema}}.thread t left join lateral ({{record}}) c on $1::boolean
where {_LISTED} and {{condition}}
"""

# By id: $4 to $5 is the range of its first characters, which the index knows; the rest is looked at row by row.
_LISTING = """
t.tenant_digest = $2::bytea and t.tenant = $3::text
    and left(t.id, 400) >= $4::text and left(t.id, 400) <= $5::text
    and starts_with(t.id, $6::text) and ($7::text is null or t.id > $7::text)
order by left(t.id, 400) collate "C", t.id limit $8::bigint
"""

_ENTRIES = f"""
select t.id, t.digest, {ENTRY} from {{schema}}.entry e join {{schema}}.thread t on t.key = e.thread
where e.tenant_digest = $1::bytea and t.tenant = $2::text and e.kind = $3::text
    and left(e.key, 400) >= $4::text and left(e.key, 400) <= $5::text
    and starts_with(e.key, $6::text) and ($7::text is null or (e.key, t.digest) > ($7::text, $8::bytea))
    and ($9::bytea is null or t.digest = $9::bytea)
    and ($10::text[] is null or e.status = any($10::text[]))
    and ($11::boolean is null or $11::boolean = (e.clock <> 'postgresql' or e.until <= {{schema}}.now_us()))
order by left(e.key, 400) collate "C", e.key, t.digest limit $12::bigint
"""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one schema, by what they do."""

    save: str
    share: str
    read_head: str
    read_id: str
    read_at: str
    history: str
    history_of_all: str
    writes: str
    writes_of_all: str
    thread: str
    threads: str
    entries: str
    inventory: str
    fetch: str
    counts: str
    identity: str
    adopt: str


@functools.cache
def statements(schema: str) -> Statements:
    """Return the statements for a schema, given as a quoted name."""

    def newest(space: str, condition: str = "") -> str:
        text = _NEWEST.replace("{inner}", condition.replace("x.", "y.")).replace("{condition}", condition)
        return text.replace("{space}", space)

    def of(template: str, condition: str = "", record: str = "") -> str:
        text = template.replace("{condition}", condition).replace("{record}", record)
        return text.replace("{schema}", schema)

    writes = (
        f"select {WRITE} from {schema}.thread t join {schema}.write w on w.thread = t.key where t.digest = $1"
    )
    return Statements(
        save=f"select * from {schema}.save_1({_ARGUMENTS})",
        share=f"select {schema}.share_1($1, $2, $3, $4, $5, $6, $7, $8)",
        read_head=of(_READ, record=newest("$2::bytea")),
        read_id=of(
            _READ,
            record="select x.* from {schema}.checkpoint x where x.thread = t.key and x.name = $2::bytea",
        ),
        read_at=of(_READ, record=newest("$2::bytea", "and x.created_at <= $6::bigint")),
        history=of(_HISTORY, "and x.space = $7::bytea"),
        history_of_all=of(_HISTORY),
        writes=f"{writes} and w.pair = any($2::bytea[])",
        writes_of_all=writes,
        thread=of(_THREADS, "t.digest = $2::bytea", newest("''::bytea")),
        threads=of(_THREADS, _LISTING, newest("''::bytea")),
        entries=of(_ENTRIES),
        inventory=(
            f"select t.generation, t.revision, k.name, octet_length(k.data)::bigint, k.revision from {schema}.thread t "
            f"left join {schema}.chunk k on k.thread = t.key where t.digest = $1"
        ),
        fetch=(
            f"select k.name, k.data from {schema}.thread t join {schema}.chunk k on k.thread = t.key "
            "and k.name = any($2::bytea[]) where t.digest = $1"
        ),
        counts=(
            "select t.checkpoints, t.writes, t.stored, "
            f"(select count(*) from {schema}.checkpoint c where c.thread = t.key), "
            f"(select count(*) from {schema}.write w where w.thread = t.key), "
            f"(select coalesce(sum(octet_length(c.body)), 0) from {schema}.checkpoint c where c.thread = t.key)::bigint + "
            f"(select coalesce(sum(octet_length(k.data)), 0) from {schema}.chunk k where k.thread = t.key)::bigint "
            f"from {schema}.thread t where t.digest = $1"
        ),
        adopt=f"insert into {schema}.store (version, naming_key) values ({VERSION}, $1) on conflict do nothing",
        identity=f"select version::bigint, naming_key from {schema}.store",
    )


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


@functools.cache
def schema_script(schema: str) -> str:
    """Return the statements that make the tables and functions."""
    return files(__package__).joinpath("postgres_schema.sql").read_text("utf-8").replace("{schema}", schema)
