"""Every statement that is sent to PostgreSQL, written for one schema."""

from __future__ import annotations

import functools
from importlib.resources import files

from outlive.backends.postgres.rows import CHECKPOINT, ENTRY, MANY, THREAD, WRITE
from outlive.dataclass import dataclass

VERSION = 1  # of the tables

_ARGUMENTS = ", ".join(f"${index}" for index in range(1, 43))  # of save_1
_ARGUMENTS_OF_PUT = ", ".join(f"${index}" for index in range(1, 33))
_ARGUMENTS_OF_PUT_ONE = ", ".join(f"${index}" for index in range(1, 18))
# The newest record of a namespace: its position by the index alone, whatever the planner knows of
# the table; then, of records that have the same position because stores were merged, the one with
# the greatest id.
_NEWEST = """
        select x.* from {schema}.checkpoint x
        where x.thread = t.key and x.space = {space} {condition} and (x.epoch, x.seq) = (
            select y.epoch, y.seq from {schema}.checkpoint y
            where y.thread = t.key and y.space = {space} {inner} order by y.epoch desc, y.seq desc limit 1
        )
        order by x.id desc limit 1
"""
LISTED = "(t.checkpoints > 0 or t.writes > 0 or t.metadata_checksum is not null or t.run_sum <> 0)"

# What is wrong with a thread, as the statements number it.
GONE, NO_HEAD, TOO_FEW, BAD_ROW, OLD_METADATA, OLD_ENTRIES, BAD_ENTRY, FEW_WRITES, OTHER_KEY = range(10, 19)
PROBLEMS = {
    GONE: "its row is gone",
    NO_HEAD: "its newest checkpoint is missing or is not the one that was stored last",
    TOO_FEW: "it does not have all the checkpoints that were stored",
    BAD_ROW: "its row does not match its checksum",
    OLD_METADATA: "its metadata is not what was stored last",
    OLD_ENTRIES: "its runs, steps or locks are not all, or not those that were stored last",
    BAD_ENTRY: "one of its runs, steps or locks does not match its checksum",
    FEW_WRITES: "it does not have all the pending writes that were stored",
    OTHER_KEY: "its row has another key than the list of all threads",
}
_LAST = (1 << 63) - 1  # the position before the first page of a history
_IS_GONE = (
    f"case when exists (select 1 from {{schema}}.roster r where r.digest = {{digest}}) then {GONE} else 0 end"
)
# Asked when nothing was found: the rows of a thread whose key has changed are still there, under
# the old one.
_HAS_OTHER_KEY = "not exists (select 1 from {schema}.roster r where r.digest = $1 and r.key = t.key)"
_COUNT = "(select count(*) from {schema}.checkpoint x where x.thread = t.key)"
_COUNT_OF_SPACE = "(select count(*) from {schema}.checkpoint x where x.thread = t.key and x.space = {space})"
_EXPECTED_OF_SPACE = (
    "case when {space} = '' then t.root_checkpoints else "
    "coalesce((select s.checkpoints from {schema}.space s where s.thread = t.key and s.space = {space}), 0) end"
)

# Nulls for the columns of a checkpoint, typed: the server then appends the parts as they are.
_NOTHING = 'null::text, null::text collate "C", null::text, null::text, null::text, null::text, ' + ", ".join(
    ["null::bigint"] * 8
)

# One reading: kind 0 the checkpoint, kind 1 its chunks and those of its writes, kind 2 its writes.
# Kinds from 10 on are problems. All in one snapshot. $3, $4: what the reader has in memory. $5:
# whether it wants chunks at all.
_READ = f"""
with t as materialized (
    select key, generation, checkpoints, root_head, root_checkpoints from {{schema}}.thread where digest = $1
),
c as materialized (
    select x.* from t cross join lateral ({{record}}) x
),
w as materialized (select w.* from c join {{schema}}.write w on w.thread = c.thread and w.pair = c.name)
select {{check}}::bigint, t.generation, {CHECKPOINT} from t left join c on true
union all
select 1::bigint, null::bigint, {_NOTHING}, k.name, k.data, null::bytea, null::bigint
from c
cross join generate_series(
    1, case when not $5::boolean or (c.id = $3::text and c.chunks = $4::bytea) then 0 else octet_length(c.chunks) end, 16
) n
cross join lateral (
    select k.name, k.data from {{schema}}.chunk k where k.thread = c.thread and k.name = substr(c.chunks, n, 16) limit 1
) k
union all
select 2::bigint, null::bigint, w.namespace, w.checkpoint collate "C", w.task, w.channel, w.path, null::text,
    w.idx, w.epoch, w.fence, w.revision, null::bigint, null::bigint, null::bigint, null::bigint,
    w.chunks, w.body, w.checksum, w.row_checksum from w
union all
select 1::bigint, null::bigint, {_NOTHING}, k.name, k.data, null::bytea, null::bigint
from w
cross join generate_series(1, case when $5::boolean then octet_length(w.chunks) else 0 end, 16) n
cross join lateral (
    select k.name, k.data from {{schema}}.chunk k where k.thread = w.thread and k.name = substr(w.chunks, n, 16) limit 1
) k
union all
select {GONE}::bigint, null::bigint, {_NOTHING}, null::bytea, null::bytea, null::bytea, null::bigint
from {{schema}}.roster r where r.digest = $1 and not exists (select 1 from t)
"""

# The first and the last page of a history are compared with the number of checkpoints.
_PAGE = """
with t as materialized (
    select key, generation, checkpoints, root_checkpoints from {schema}.thread where digest = $1::bytea
),
c as materialized (
    select x.* from t cross join lateral (
        select x.* from {schema}.checkpoint x
        where x.thread = t.key {condition} and (x.epoch, x.seq) <= ($2::bigint, $3::bigint)
            and (x.epoch, x.seq, x.id) < ($2::bigint, $3::bigint, $4::text) and ($5::text is null or x.run = $5::text)
        order by x.epoch desc, x.seq desc fetch first ($6::bigint) rows with ties
    ) x
)
"""
_PAGE_CHECK = f"""case
        when t.key is null then {_IS_GONE.replace("{digest}", "$1::bytea")}
        when c.id is null and {_HAS_OTHER_KEY} then {OTHER_KEY}
        when ($2::bigint = {_LAST} or (select count(*) from c) < $6::bigint) and {{count}} <> {{expected}} then {TOO_FEW}
        else 0 end::bigint"""
_HISTORY = (
    _PAGE
    + f"""
select {_PAGE_CHECK}, t.generation, {CHECKPOINT}
from (select 1) q left join t on true left join c on true
"""
)

# A page with its chunks. `n` has each chunk at the first record that names it; `f` the records that
# fit: up to $7 bytes of chunks, and at least one. A row has a record, or a chunk.
_STATES = (
    _PAGE
    + f""",
p as materialized (
    select c.name, row_number() over (order by c.epoch desc, c.seq desc, c.id desc) as position from c
),
n as materialized (
    select substr(c.chunks, i, 16) as name, min(p.position) as position
    from c join p on p.name = c.name and p.position <= $6::bigint
    cross join generate_series(1, octet_length(c.chunks), 16) i group by 1
),
s as materialized (
    select p.name, p.position, sum(sum(coalesce(octet_length(k.data), 0))) over (order by p.position) as bytes
    from p cross join t left join n on n.position = p.position
    left join {{schema}}.chunk k on k.thread = t.key and k.name = n.name
    where p.position <= $6::bigint group by p.name, p.position
),
f as materialized (select s.name, s.position from s where s.position = 1 or s.bytes <= $7::bigint)
select {_PAGE_CHECK}, t.generation, (select count(*) from s), null::bytea, null::bytea, {CHECKPOINT}
from (select 1) q left join t on true left join (f join c on c.name = f.name) on true
union all
select 0::bigint, null::bigint, null::bigint, k.name, k.data, {CHECKPOINT}
from t join f on true join n on n.position = f.position
join {{schema}}.chunk k on k.thread = t.key and k.name = n.name
left join c on false
"""
)

_THREADS = f"""
select case
        when t.is_bad_row then {BAD_ROW}
        when r.digest is not null and r.metadata_checksum is distinct from t.metadata_checksum then {OLD_METADATA}
        when $1::boolean and c.row_checksum is distinct from t.root_head then {NO_HEAD}
        else 0 end::bigint as problem,
    {THREAD}, {CHECKPOINT}
from page t left join {{schema}}.roster r on r.digest = t.digest left join lateral ({{record}}) c on $1::boolean
union all
select {GONE}, g.id, {", ".join(["null"] * 12)}, g.digest, {", ".join(["null"] * 18)} from gone g
order by 2
"""

_THREAD = f"""
with page as materialized (
    select t.*, {{schema}}.thread_row_checksum_1(t) <> t.row_checksum as is_bad_row from {{schema}}.thread t
    where t.digest = $2::bytea and ({LISTED} or {{schema}}.thread_row_checksum_1(t) <> t.row_checksum)
),
gone as materialized (
    select r.id, r.digest from {{schema}}.roster r
    where r.digest = $2::bytea and not exists (select 1 from {{schema}}.thread t where t.digest = $2::bytea)
)
"""

# By id: $4 to $5 is the range of its first characters, for the index; the rest is filtered.
_RANGE = """
{table}.tenant_digest = $2::bytea and {table}.tenant = $3::text
    and left({table}.id, 400) >= $4::text and left({table}.id, 400) <= {last}
    and starts_with({table}.id, $6::text) and ($7::text is null or {table}.id > $7::text)
"""

# A page of threads, and those of the roster that should be on it and are not.
_LISTING = f"""
with page as materialized (
    select t.*, {{schema}}.thread_row_checksum_1(t) <> t.row_checksum as is_bad_row from {{schema}}.thread t
    where ({LISTED} or {{schema}}.thread_row_checksum_1(t) <> t.row_checksum) and {_RANGE.format(table="t", last="$5::text")}
    order by left(t.id, 400) collate "C", t.id limit $8::bigint
),
last as materialized (
    select case when count(*) = $8::bigint then max(id collate "C") end as id from page
),
gone as materialized (
    select r.id, r.digest from {{schema}}.roster r cross join last
    where {_RANGE.format(table="r", last="coalesce(left(last.id, 400), $5::text)")}
        and (last.id is null or r.id <= last.id)
        and not exists (
            select 1 from {{schema}}.thread t
            where t.digest = r.digest and t.tenant_digest = r.tenant_digest and t.tenant = r.tenant and t.id = r.id
        )
    order by left(r.id, 400) collate "C", r.id limit $8::bigint
)
"""

# A page of threads by time, newest first: $4 and $5 are the position of the last one before. The
# ties of the last second are read too, and sorted.
_NEWEST_PAGE = """
with page as materialized (
    select t.*, {schema}.thread_row_checksum_1(t) <> t.row_checksum as is_bad_row
    from (
        select n.key from {schema}.newest_threads_1($2, $3, $4, $5, $6) n
        order by n.updated_at desc, n.id collate "C" limit $6::bigint
    ) n
    join {schema}.thread t on t.key = n.key
),
gone as materialized (select r.id, r.digest from {schema}.roster r where false)
"""
_TENANT_TOTALS = f"""
select count(*), coalesce(sum(t.checkpoints), 0)::bigint, coalesce(sum(t.stored), 0)::bigint
from {{schema}}.thread t where {LISTED} and t.tenant_digest = $1::bytea and t.tenant = $2::text
"""

# All entries of a class (those of kinds that may be many, or the others) are added up, and compared
# with what their thread's row says.
_IS_MANY = "$3::text in ({})".format(", ".join(f"'{kind}'" for kind in MANY))
_ENTRY_SUM = f"""
select {{schema}}.xor_1(e.row_checksum # e.until) as sum, bool_or({{schema}}.entry_row_checksum_1(t.digest, e) <> e.row_checksum) as is_damaged
from {{schema}}.entry e where e.thread = t.key
    and e.name >= case when {_IS_MANY} then '\\x01'::bytea else '' end
    and e.name < case when {_IS_MANY} then '\\x02'::bytea else '\\x01' end
"""
_IS_OLD = f"a.sum <> case when {_IS_MANY} then t.step_sum else t.run_sum end"
_STATUSES = "($9::text[] is null or e.status = any($9::text[]))"
_ENTRY_FILTER = """
e.kind = $3::text
    and left(e.key, 400) >= $4::text and left(e.key, 400) <= $5::text
    and starts_with(e.key, $6::text) and ($7::text is null or (e.key, {digest}) > ($7::text, $8::bytea))
    and {statuses}
    and ($10::boolean is null or $10::boolean = (e.clock not in ('postgresql', 'wall') or e.until <= {schema}.now_us_1()))
"""
_ENTRY_FILTER = _ENTRY_FILTER.replace("{statuses}", _STATUSES)
_FILTER_OF_ALL = _ENTRY_FILTER.replace("{digest}", "coalesce(t.digest, r.digest)")
_FILTER_OF_THREAD = _ENTRY_FILTER.replace("{digest}", "t.digest")
# Ordered by what the index has, so that no plan reads more than a page; the last lines sort the
# ties.
_ENTRIES = f"""
with page as materialized (
    select t.key is null as is_gone, coalesce(t.id, r.id) as thread_id, coalesce(t.digest, r.digest) as digest,
        t.run_sum, t.step_sum, e.*
    from {{schema}}.entry e left join {{schema}}.thread t on t.key = e.thread
    left join {{schema}}.roster r on r.key = e.thread and t.key is null
    where e.tenant_digest = $1::bytea and $2::text is not null and {_FILTER_OF_ALL}
    order by left(e.key, 400) collate "C" fetch first ($11::bigint) rows with ties
),
checked as materialized (
    select t.key, case when t.is_gone then {GONE} when {_IS_OLD} then {OLD_ENTRIES} else 0 end as problem
    from (select distinct p.thread as key, p.is_gone, p.digest, p.run_sum, p.step_sum from page p) t
    cross join lateral ({_ENTRY_SUM}) a
)
select k.problem::bigint, e.thread_id, e.digest, {ENTRY} from page e join checked k on k.key = e.thread
order by left(e.key, 400) collate "C", e.key, e.digest limit $11::bigint
"""
_ENTRIES_OF_THREAD = f"""
with t as materialized (
    select x.key, x.id, x.digest, x.run_sum, x.step_sum
    -- By the digest, whatever the planner knows about the table: the index of tenants reads all their threads.
    from (select * from {{schema}}.thread where digest = $12::bytea offset 0) x
    where x.tenant_digest = $1::bytea and x.tenant = $2::text
),
checked as materialized (
    select case when {_IS_OLD} then {OLD_ENTRIES} when a.is_damaged then {BAD_ENTRY} else 0 end as problem
    from t cross join lateral ({_ENTRY_SUM}) a
)
select case when t.key is null then {_IS_GONE.replace("{digest}", "$12::bytea")}
        else (select k.problem from checked k) end::bigint,
    t.id, t.digest, {ENTRY}
from (select 1) q left join t on true left join lateral (
    select e.* from {{schema}}.entry e
    where e.thread = t.key and {_FILTER_OF_THREAD}
    order by left(e.key, 400) collate "C", e.key limit $11::bigint
) e on true
order by left(e.key, 400) collate "C", e.key
"""

# The next entries of a kind that nobody has locked, among the first ones of the queue. Of each
# thread the first alone: the ones after it must not be claimed while another worker has it. The
# commit that claims one checks its thread, so its thread's sums are not compared here. Only as many
# rows as are wanted are read and locked: hence the order inside, and no other join.
_RESERVED_AMONG = 200
_RESERVE = f"""
with front as materialized (
    select e.thread, e.name, e.key from {{schema}}.entry e
    where e.tenant_digest = $1::bytea and e.kind = $2::text
        and left(e.key, 400) >= $3::text and left(e.key, 400) <= $4::text
        and starts_with(e.key, $5::text) and ($6::text is null or e.key > $6::text)
    order by left(e.key, 400) collate "C" limit {_RESERVED_AMONG}
),
firsts as materialized (
    select f.thread, f.name from (select distinct on (f.thread) f.* from front f order by f.thread, f.key) f
    order by f.key
)
select t.id, t.digest, {ENTRY} from firsts f
cross join lateral (
    select x.* from {{schema}}.entry x where x.thread = f.thread and x.name = f.name limit 1 for update skip locked
) e
cross join lateral (select y.id, y.digest from {{schema}}.thread y where y.key = f.thread limit 1) t
limit $7::bigint
"""

# Renew leases that are as the commit expects. Of a commit whose leases were not all found, none is
# renewed. The laterals are limited: all locks of places have one name, and a planner without
# statistics would join by that.
_RENEW = """
with lease as materialized (
    select * from unnest(
        $1::bytea[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[]
    ) with ordinality x(digest, name, epoch, fence, revision, lease_us, commit, leases, position)
),
locked as materialized (
    select x.commit, x.leases, x.position, t.generation, t.revision, e.row,
        {schema}.now_us_1() + x.lease_us as renewed_until
    from lease x
    cross join lateral (
        select y.key, y.generation, y.revision from {schema}.thread y where y.digest = x.digest limit 1
    ) t
    cross join lateral (
        select y.ctid as row from {schema}.entry y
        where y.thread = t.key and y.name = x.name and y.epoch = x.epoch and y.fence = x.fence
            and y.revision = x.revision and y.status = 'running' and y.clock = 'postgresql'
        limit 1 for update skip locked
    ) e
),
whole as materialized (select l.*, count(*) over (partition by l.commit) as found from locked l)
update {schema}.entry e set until = w.renewed_until, row_checksum = e.row_checksum # e.until # w.renewed_until
from whole w where e.ctid = w.row and w.found = w.leases
returning w.position, w.generation, w.revision, e.until, e.body
"""

_WRITES = f"""
select case when t.key is null then {_IS_GONE.replace("{digest}", "$1")}
        when w.thread is null and {_HAS_OTHER_KEY} then {OTHER_KEY} {{check}} else 0 end::bigint, {WRITE}
from (select 1) q left join {{schema}}.thread t on t.digest = $1
left join {{schema}}.write w on w.thread = t.key {{condition}}
"""


# What an audit compares: the counters and sums of a thread's row, and what its rows come to.
_TOTALS = """
select t.checkpoints, t.checkpoint_sum, t.root_checkpoints, t.root_head, t.writes, t.run_sum, t.step_sum, t.stored,
    c.rows, c.sum, c.roots,
    (select x.row_checksum from {schema}.checkpoint x where x.thread = t.key and x.space = ''
        order by x.epoch desc, x.seq desc, x.id desc limit 1),
    (select count(*) from {schema}.write w where w.thread = t.key and w.checksum <> ''),
    (select {schema}.xor_1(e.row_checksum # e.until) from {schema}.entry e where e.thread = t.key and e.name < '\\x01'::bytea),
    (select {schema}.xor_1(e.row_checksum # e.until) from {schema}.entry e where e.thread = t.key and e.name >= '\\x01'::bytea),
    c.bytes + (select coalesce(sum(octet_length(k.data)), 0) from {schema}.chunk k where k.thread = t.key)::bigint,
    {schema}.thread_row_checksum_1(t) = t.row_checksum,
    r.digest is not null and r.key = t.key and r.tenant_digest = t.tenant_digest and r.tenant = t.tenant and r.id = t.id,
    r.metadata_checksum is not distinct from t.metadata_checksum,
    (t.seq, t.epoch, t.revision) is not distinct from (
        greatest(t.seq, c.seq), greatest(t.epoch, c.epoch),
        greatest(t.revision, (select max(k.revision) from {schema}.chunk k where k.thread = t.key))
    ),
    not exists (
        select 1 from {schema}.write w where w.thread = t.key group by w.pair
        having (count(*) filter (where w.checksum <> ''), {schema}.xor_1(w.row_checksum))
            is distinct from (max(w.epoch) filter (where w.checksum = ''), max(w.fence) filter (where w.checksum = ''))
    ),
    not exists (
        select 1 from (
            select x.space, count(*) as rows from {schema}.checkpoint x
            where x.thread = t.key and x.space <> '' group by x.space
        ) x full join (select s.* from {schema}.space s where s.thread = t.key) s on s.space = x.space
        where x.rows is distinct from s.checkpoints or s.head is distinct from (
            select y.row_checksum from {schema}.checkpoint y where y.thread = t.key and y.space = s.space
            order by y.epoch desc, y.seq desc, y.id desc limit 1
        )
    )
from {schema}.thread t left join {schema}.roster r on r.digest = t.digest cross join lateral (
    select count(*) as rows, {schema}.xor_1(x.row_checksum) as sum, count(*) filter (where x.space = '') as roots,
        coalesce(sum(octet_length(x.body)), 0)::bigint as bytes, max(x.seq) as seq, max(x.epoch) as epoch
    from {schema}.checkpoint x where x.thread = t.key
) c
where t.digest = $1
"""

# Rows whose thread has no row, and threads that are in one table only.
_STRAYS = " union all ".join(
    f"select '{table}'::text, x.thread, count(*), null::text from {{schema}}.{table} x "
    "where not exists (select 1 from {schema}.thread t where t.key = x.thread) group by x.thread"
    for table in ("checkpoint", "space", "chunk", "write", "entry")
) + (
    " union all select 'roster', r.key, 1, r.id from {schema}.roster r "
    "where not exists (select 1 from {schema}.thread t where t.digest = r.digest and t.key = r.key)"
    " union all select 'thread', t.key, 1, t.id from {schema}.thread t "
    "where not exists (select 1 from {schema}.roster r where r.digest = t.digest and r.key = t.key)"
)


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one schema, by what they do."""

    save: str
    put: str
    put_one: str
    renew: str
    reserve: str
    share: str
    read_head: str
    read_head_of: str
    read_id: str
    read_at: str
    history: str
    history_of_all: str
    states: str
    states_of_all: str
    writes: str
    writes_of_all: str
    thread: str
    threads: str
    newest_threads: str
    tenant_totals: str
    entries: str
    entries_of_status: str
    entries_of_thread: str
    inventory: str
    fetch: str
    totals: str
    names: str
    entry_rows: str
    strays: str
    identity: str
    adopt: str


@functools.cache
def statements(schema: str) -> Statements:
    """Return the statements for a schema, given as a quoted name."""

    def newest(space: str, condition: str = "") -> str:
        text = _NEWEST.replace("{inner}", condition.replace("x.", "y.")).replace("{condition}", condition)
        return text.replace("{space}", space)

    def of(template: str, **parts: str) -> str:
        for name, part in parts.items():
            template = template.replace("{" + name + "}", part)
        return template.replace("{schema}", schema)

    def read(record: str, problem: int, condition: str, more: str = "") -> str:
        return of(_READ, record=record, check=f"case when {condition} then {problem} {more} else 0 end")

    count, expected = (part.replace("{space}", "$2::bytea") for part in (_COUNT_OF_SPACE, _EXPECTED_OF_SPACE))
    head = "(select s.head from {schema}.space s where s.thread = t.key and s.space = $2::bytea)"
    by_name = "select x.* from {schema}.checkpoint x where x.thread = t.key and x.name = $2::bytea"
    by_id = "select 1 from {schema}.checkpoint x where x.thread = t.key and x.id = $6::text and x.namespace = $7::text"
    return Statements(
        save=f"select * from {schema}.save_1({_ARGUMENTS})",
        put=f"select * from {schema}.put_1({_ARGUMENTS_OF_PUT})",
        put_one=f"select * from {schema}.put_one_1({_ARGUMENTS_OF_PUT_ONE})",
        renew=of(_RENEW),
        reserve=of(_RESERVE),
        share=f"select {schema}.share_1($1, $2, $3, $4, $5, $6, $7, $8)",
        read_head=read(newest("$2::bytea"), NO_HEAD, "c.row_checksum is distinct from t.root_head"),
        read_head_of=read(
            newest("$2::bytea"),
            NO_HEAD,
            f"c.row_checksum is distinct from {head}",
            f"when c.id is null and {_HAS_OTHER_KEY} then {OTHER_KEY}",
        ),
        read_id=read(by_name, TOO_FEW, f"c.id is null and ({_COUNT} <> t.checkpoints or exists ({by_id}))"),
        read_at=read(
            newest("$2::bytea", "and x.created_at <= $6::bigint"),
            TOO_FEW,
            f"{count} <> {expected}",
            f"when c.id is null and {_HAS_OTHER_KEY} then {OTHER_KEY}",
        ),
        history=of(
            _HISTORY,
            condition="and x.space = $7::bytea",
            count=_COUNT_OF_SPACE,
            expected=_EXPECTED_OF_SPACE,
            space="$7::bytea",
        ),
        history_of_all=of(_HISTORY, condition="", count=_COUNT, expected="t.checkpoints"),
        states=of(
            _STATES,
            condition="and x.space = $8::bytea",
            count=_COUNT_OF_SPACE,
            expected=_EXPECTED_OF_SPACE,
            space="$8::bytea",
        ),
        states_of_all=of(_STATES, condition="", count=_COUNT, expected="t.checkpoints"),
        writes=of(_WRITES, check="", condition="and w.pair = any($2::bytea[])"),
        writes_of_all=of(
            _WRITES,
            check=(
                "when t.writes <> (select count(*) from {schema}.write x where x.thread = t.key and x.checksum <> '') "
                f"then {FEW_WRITES}"
            ),
            condition="",
        ),
        thread=of(_THREAD + _THREADS, record=newest("''::bytea")),
        threads=of(_LISTING + _THREADS + "limit $8::bigint", record=newest("''::bytea")),
        newest_threads=of(
            _NEWEST_PAGE + _THREADS.replace("order by 2", "order by 10 desc, 2"), record=newest("''::bytea")
        ),
        tenant_totals=of(_TENANT_TOTALS),
        entries=of(_ENTRIES),
        entries_of_status=of(_ENTRIES.replace(_STATUSES, "e.status = $9::text")),
        entries_of_thread=of(_ENTRIES_OF_THREAD),
        inventory=of(
            f"select case when t.key is null then {_IS_GONE} when {{schema}}.thread_row_checksum_1(t) <> t.row_checksum then {BAD_ROW} "
            "else 0 end::bigint, t.generation, t.revision, k.name, octet_length(k.data)::bigint, k.revision "
            "from (select 1) q left join {schema}.thread t on t.digest = $1 left join {schema}.chunk k on k.thread = t.key",
            digest="$1",
        ),
        fetch=(
            f"select k.name, k.data from {schema}.thread t join {schema}.chunk k on k.thread = t.key "
            "and k.name = any($2::bytea[]) where t.digest = $1"
        ),
        totals=of(_TOTALS),
        names=of(
            "select c.namespace, c.id, c.name, c.space from {schema}.thread t join {schema}.checkpoint c on c.thread = t.key "
            "where t.digest = $1"
        ),
        entry_rows=of(
            f"select e.name, {ENTRY} from {{schema}}.thread t join {{schema}}.entry e on e.thread = t.key where t.digest = $1"
        ),
        strays=of(_STRAYS),
        # A store whose row is gone must not be taken for a new one.
        adopt=(
            f"insert into {schema}.store (version, naming_key) select {VERSION}, $1 "
            f"where not exists (select 1 from {schema}.roster) on conflict do nothing"
        ),
        identity=(
            f"select version::bigint, naming_key, to_regproc('{_in_text(schema)}.save_1') is not null from {schema}.store"
        ),
    )


def _in_text(identifier: str) -> str:
    """Return an identifier as it stands inside a string of SQL."""
    return identifier.replace("'", "''")


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


@functools.cache
def schema_script(schema: str) -> str:
    """Return the statements that make the tables."""
    return _script("schema.sql", schema)


@functools.cache
def functions_script(schema: str) -> str:
    """Return the statements that make the functions."""
    return _script("functions.sql", schema)


def _script(name: str, schema: str) -> str:
    text = files(__package__).joinpath(name).read_text("utf-8")
    return text.replace("{LISTED}", LISTED).replace("{schema}", schema)
