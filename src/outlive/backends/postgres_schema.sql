-- outlive in PostgreSQL, version 1. {schema} stands for the quoted name of the schema.
-- Times are microseconds since 1970. Names of up to 1,000 characters do not fit into an index: beside each
-- stands a digest of it. Ids are escaped (no NUL, no lone surrogate) and compare by their bytes.

create table {schema}.store (
    one boolean primary key default true check (one),
    version int not null,
    naming_key bytea not null
);

-- Every thread that was ever made. A row of `thread` that is gone is missed here, and so is metadata that is an older copy.
create table {schema}.roster (
    key bigint generated always as identity primary key,
    digest bytea not null,
    tenant_digest bytea not null,
    tenant text not null,
    id text collate "C" not null,
    info_checksum bytea                      -- of the thread's metadata
);
create unique index roster_digest on {schema}.roster (digest);
create index roster_listing on {schema}.roster (tenant_digest, left(id, 400) collate "C");

-- A `seal` is 64 bits of SHA-256 over what the server gave a row, its checksum and the thread's digest. Sums of seals are XORs.
create table {schema}.thread (
    key bigint primary key,                  -- that of the roster
    digest bytea not null,
    tenant_digest bytea not null,
    tenant text not null,
    id text collate "C" not null,
    generation bigint not null,
    revision bigint not null default 0,
    epoch bigint not null default 0,
    seq bigint not null default 0,
    checkpoints bigint not null default 0,
    writes bigint not null default 0,
    stored bigint not null default 0,        -- bytes of chunks and bodies
    created_at bigint not null,
    updated_at bigint not null,
    info bytea,
    info_checksum bytea,
    metadata jsonb,                          -- what info says, for people
    info_version bigint not null default 0,
    root_checkpoints bigint not null default 0,
    root_head bigint,                        -- seal of the newest checkpoint of the root namespace
    checkpoint_sum bigint not null default 0,  -- of the seals of all checkpoints
    run_sum bigint not null default 0,       -- of those of runs, locks and other entries that are few
    step_sum bigint not null default 0,      -- of those of steps, responses, tombstones and notes
    seal bigint not null default 0,          -- over the counters, sums and tokens of this row
    tokens bytea not null default ''         -- of the last commits, 8 bytes each, newest first
) with (fillfactor = 70);                    -- room on the page: an update touches no index
create unique index thread_digest on {schema}.thread (digest);
create index thread_listing on {schema}.thread (tenant_digest, left(id, 400) collate "C");

create table {schema}.checkpoint (
    thread bigint not null,
    name bytea not null,                     -- digest of (namespace, id)
    space bytea not null,                    -- digest of the namespace; empty for the root
    epoch bigint not null,
    seq bigint not null,
    created_at bigint not null,
    size bigint not null,
    added bigint not null,
    step bigint,
    version bigint not null,
    format int not null,
    namespace text not null,
    id text collate "C" not null,
    parent text,
    run text,
    source text not null,
    metadata jsonb,                          -- what body says, for people
    checksum bytea not null,                 -- over what the client wrote
    seal bigint not null,                    -- over checksum, epoch, seq, created_at, parent
    chunks bytea not null,                   -- names, 16 bytes each
    body bytea not null
);
create unique index checkpoint_name on {schema}.checkpoint (thread, name);
-- The space first, so that nobody takes this index to find a checkpoint by its name.
create index checkpoint_order on {schema}.checkpoint (space, thread, epoch, seq);
alter table {schema}.checkpoint alter body set storage external, alter chunks set storage external;

-- The newest checkpoint of each namespace but the root, and how many it has.
create table {schema}.space (
    thread bigint not null,
    space bytea not null,
    checkpoints bigint not null,
    head bigint not null,                    -- seal of the newest
    primary key (thread, space)
) with (fillfactor = 70);

create table {schema}.chunk (
    thread bigint not null,
    name bytea not null,
    revision bigint not null,                -- of the commit that stored it last
    data bytea not null                      -- compressed already
);
create unique index chunk_name on {schema}.chunk (thread, name);
alter table {schema}.chunk alter data set storage external;

-- A row with an empty checksum is the tally of its pair: `epoch` is how many writes there are, `fence` the sum of their seals.
create table {schema}.write (
    thread bigint not null,
    pair bytea not null,                     -- digest of (namespace, checkpoint)
    task_digest bytea not null,
    idx bigint not null,
    epoch bigint not null,                   -- rank of a control write
    fence bigint not null,
    revision bigint not null,
    namespace text not null,
    checkpoint text not null,
    task text not null,
    channel text not null,
    path text not null,
    checksum bytea not null,
    seal bigint not null,                    -- over checksum, epoch, fence, revision
    chunks bytea not null,
    body bytea not null
);
create unique index write_key on {schema}.write (thread, pair, task_digest, idx);

create table {schema}.entry (
    thread bigint not null,
    name bytea not null,                     -- 1 for kinds of step_sum, else 0; then digest of (kind, key)
    tenant_digest bytea not null,
    kind text not null,
    key text collate "C" not null,
    status text not null,
    epoch bigint not null,
    fence bigint not null,
    revision bigint not null,
    until bigint not null,                   -- end of the lease
    clock text not null,                     -- whose clock that is
    checksum bytea not null,                 -- over kind, key and body
    seal bigint not null,                    -- over all columns but the body
    body bytea not null
);
create unique index entry_name on {schema}.entry (thread, name);
create index entry_listing on {schema}.entry (tenant_digest, kind, left(key, 400) collate "C");
create index entry_lease on {schema}.entry (tenant_digest, kind, status, until);
