-- outlive in PostgreSQL, version 1. {schema} stands for the quoted name of the schema.
-- Times are microseconds since 1970. Names of up to 1,000 characters do not fit into an index: beside each
-- stands a digest of it. Ids are escaped (no NUL, no lone surrogate) and compare by their bytes.

create table {schema}.store (
    one boolean primary key default true check (one),
    version int not null,
    naming_key bytea not null
);

create table {schema}.thread (
    key bigint generated always as identity primary key,
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
    metadata jsonb,                          -- what info says, for people
    info_version bigint not null default 0
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
    chunks bytea not null,                   -- names, 16 bytes each
    body bytea not null
);
create unique index checkpoint_name on {schema}.checkpoint (thread, name);
-- The space first, so that nobody takes this index to find a checkpoint by its name.
create index checkpoint_order on {schema}.checkpoint (space, thread, epoch, seq);
alter table {schema}.checkpoint alter body set storage external, alter chunks set storage external;

create table {schema}.chunk (
    thread bigint not null,
    name bytea not null,
    revision bigint not null,                -- of the commit that stored it last
    data bytea not null                      -- compressed already
);
create unique index chunk_name on {schema}.chunk (thread, name);
alter table {schema}.chunk alter data set storage external;

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
    chunks bytea not null,
    body bytea not null
);
create unique index write_key on {schema}.write (thread, pair, task_digest, idx);

create table {schema}.entry (
    thread bigint not null,
    name bytea not null,                     -- digest of (kind, key)
    tenant_digest bytea not null,
    kind text not null,
    key text collate "C" not null,
    status text not null,
    epoch bigint not null,
    fence bigint not null,
    revision bigint not null,
    until bigint not null,                   -- end of the lease
    clock text not null,                     -- whose clock that is
    body bytea not null
);
create unique index entry_name on {schema}.entry (thread, name);
create index entry_listing on {schema}.entry (tenant_digest, kind, left(key, 400) collate "C");
create index entry_lease on {schema}.entry (tenant_digest, kind, status, until);

create function {schema}.now_us() returns bigint language sql volatile as
    'select (extract(epoch from clock_timestamp()) * 1000000)::bigint';

-- Whether an entry may not take the place of the stored one: it is behind, unexpected, or a lease runs.
create function {schema}.is_held_1(e {schema}.entry, v jsonb, p_body bytea, p_now bigint) returns boolean
language plpgsql stable as $outlive$
declare
    offered_epoch bigint := v->>'epoch';
    offered_fence bigint := v->>'fence';
    offered_revision bigint := v->>'revision';
    is_there boolean := e.thread is not null;
begin
    if is_there and not (v->>'gone')::boolean and e.status = v->>'status' and e.body = p_body
        and (e.epoch, e.fence, e.revision) = (offered_epoch, offered_fence, offered_revision)
    then
        return false;  -- what is offered is there already
    end if;
    if is_there and offered_fence <> -1 and not (v->>'gone')::boolean
        and (offered_epoch, offered_fence, offered_revision) < (e.epoch, e.fence, e.revision)
    then
        return true;
    end if;
    if v->'expect' <> 'null' and (coalesce(e.epoch, 0), coalesce(e.fence, 0), coalesce(e.revision, 0))
        <> ((v->'expect'->>0)::bigint, (v->'expect'->>1)::bigint, (v->'expect'->>2)::bigint)
    then
        return true;
    end if;
    return (v->>'expect_lapsed')::boolean and is_there and e.clock = 'postgresql' and e.until > p_now;
end
$outlive$;

-- Put or remove an entry; return it as it is stored then.
create function {schema}.settle_1(
    p_thread bigint, p_tenant_digest bytea, v jsonb, p_body bytea, p_revision bigint, p_now bigint
) returns {schema}.entry
language plpgsql as $outlive$
declare
    e {schema}.entry;
begin
    select x.* into e from {schema}.entry x where x.thread = p_thread and x.name = decode(v->>'name', 'hex');
    if p_body is null then
        e.body := coalesce(e.body, '');
        e.status := coalesce(nullif(v->>'status', ''), e.status, '');
    else
        e.body := p_body;
        e.status := v->>'status';
    end if;
    e.thread := p_thread;
    e.tenant_digest := p_tenant_digest;
    e.name := decode(v->>'name', 'hex');
    e.kind := v->>'kind';
    e.key := v->>'key';
    e.epoch := (v->>'epoch')::bigint;
    e.fence := (v->>'fence')::bigint;
    e.revision := (v->>'revision')::bigint;
    if e.fence = -1 then
        e.fence := p_revision;
    end if;
    if v->'lease_us' = 'null' then
        e.until := (v->>'until')::bigint;
        e.clock := v->>'clock';
    else
        e.until := p_now + (v->>'lease_us')::bigint;
        e.clock := 'postgresql';
    end if;
    if (v->>'gone')::boolean then
        delete from {schema}.entry x where x.thread = e.thread and x.name = e.name;
        return e;
    end if;
    insert into {schema}.entry select e.*
        on conflict (thread, name) do update set
            status = excluded.status, epoch = excluded.epoch, fence = excluded.fence, revision = excluded.revision,
            until = excluded.until, clock = excluded.clock, body = excluded.body;
    return e;
end
$outlive$;

-- Put a pending write; return null when the one that is there stays, else whether it is a new row.
create function {schema}.write_1(
    p_thread bigint, v jsonb, p_body bytea, p_chunks bytea, p_epoch bigint, p_revision bigint
) returns boolean
language plpgsql as $outlive$
declare
    is_stamped boolean := v->>'stamp';
    v_fresh boolean;
begin
    insert into {schema}.write as x values (
        p_thread, decode(v->>'pair', 'hex'), decode(v->>'task_digest', 'hex'), (v->>'index')::bigint,
        case when is_stamped then p_epoch else (v->>'epoch')::bigint end,
        (v->>'fence')::bigint,
        case when is_stamped then p_revision else (v->>'revision')::bigint end,
        v->>'namespace', v->>'checkpoint', v->>'task', v->>'channel', v->>'path', p_chunks, p_body
    )
    on conflict (thread, pair, task_digest, idx) do update set
        epoch = excluded.epoch, fence = excluded.fence, revision = excluded.revision,
        channel = excluded.channel, path = excluded.path, chunks = excluded.chunks, body = excluded.body
        where x.idx < 0 and (is_stamped
            or (excluded.epoch, excluded.fence, excluded.revision, excluded.body)
                > (x.epoch, x.fence, x.revision, x.body))
    returning x.xmax = 0 into v_fresh;
    return v_fresh;
end
$outlive$;

-- Store chunks; stamp those that are there already. Return the bytes that are new.
create function {schema}.chunks_1(p_thread bigint, p_names bytea, p_data bytea[], p_revision bigint) returns bigint
language plpgsql as $outlive$
declare
    v_bytes bigint;
begin
    with put as (
        insert into {schema}.chunk as x (thread, name, revision, data)
            select p_thread, substr(p_names, (16 * u.n - 15)::int, 16), p_revision, u.data
            from unnest(p_data) with ordinality u(data, n)
            on conflict (thread, name) do update set revision = excluded.revision
            returning case when x.xmax = 0 then octet_length(x.data) else 0 end as bytes
    )
    select coalesce(sum(put.bytes), 0) into v_bytes from put;
    return v_bytes;
end
$outlive$;

-- One ordinary save: expectations, checkpoint, chunks, writes and entries in one statement under one lock, that
-- of the thread's row. All else is decided by the client, in a transaction that holds the same lock.
-- The verdict is 'done', 'existing' or the name of what did not hold; then nothing was changed.
create function {schema}.save_1(
    p_wait text, p_digest bytea, p_tenant_digest bytea, p_tenant text, p_thread text, p_token bigint,
    p_generation bigint, p_epoch bigint,
    p_expects boolean, p_expect_space bytea, p_expect_head text,
    p_fence_name bytea, p_fence_epoch bigint, p_fence bigint,
    p_name bytea, p_space bytea, p_namespace text, p_id text, p_parent text, p_follows boolean,
    p_run text, p_step bigint, p_source text, p_size bigint, p_added bigint, p_created_at bigint,
    p_version bigint, p_format int, p_metadata jsonb, p_checksum bytea, p_chunks bytea, p_body bytea,
    p_names bytea, p_data bytea[],
    p_writes jsonb, p_write_bodies bytea[], p_write_chunks bytea[],
    p_entries jsonb, p_entry_bodies bytea[],
    out verdict text, out generation bigint, out revision bigint, out epoch bigint, out seq bigint,
    out created_at bigint, out parent text, out head text, out number bigint,
    out accepted bigint[], out settled jsonb, out settled_bodies bytea[], out chunks bytea
) language plpgsql as $outlive$
declare
    t {schema}.thread;
    e {schema}.entry;
    x jsonb;
    v_now bigint;
    v_is_new boolean;
    v_bytes bigint := 0;
    v_fresh boolean;
    v_writes bigint := 0;
begin
    perform set_config('lock_timeout', p_wait, true);
    loop
        select y.key, y.generation, y.revision, y.epoch, y.seq
            into t.key, t.generation, t.revision, t.epoch, t.seq
            from {schema}.thread y where y.digest = p_digest for update;
        v_is_new := not found;
        v_now := {schema}.now_us();
        generation := t.generation;
        revision := t.revision;
        if p_fence_name is not null then
            select y.* into e from {schema}.entry y where y.thread = t.key and y.name = p_fence_name;
            if not found or e.epoch <> p_fence_epoch or e.fence <> p_fence or e.status <> 'running' then
                verdict := 'fence';
                number := e.fence;
                exit;
            end if;
        end if;
        if p_epoch < t.epoch then
            verdict := 'epoch';
            number := t.epoch;
            exit;
        end if;
        if p_generation is not null and p_generation is distinct from t.generation then
            verdict := 'generation';  -- and what the client needs to try again without reading the thread first
            select c.chunks into chunks from {schema}.checkpoint c
                where c.thread = t.key and c.space = p_space order by c.epoch desc, c.seq desc limit 1;
            exit;
        end if;
        if p_follows then
            select c.id into parent from {schema}.checkpoint c
                where c.thread = t.key and c.space = p_space and (c.epoch, c.seq) = (
                    select y.epoch, y.seq from {schema}.checkpoint y
                    where y.thread = t.key and y.space = p_space order by y.epoch desc, y.seq desc limit 1
                )
                order by c.id desc limit 1;
        end if;
        if p_expects then
            if p_follows and p_expect_space = p_space then
                head := parent;
            else
                select c.id into head from {schema}.checkpoint c
                    where c.thread = t.key and c.space = p_expect_space and (c.epoch, c.seq) = (
                        select y.epoch, y.seq from {schema}.checkpoint y
                        where y.thread = t.key and y.space = p_expect_space order by y.epoch desc, y.seq desc limit 1
                    )
                    order by c.id desc limit 1;
            end if;
            if head is distinct from p_expect_head then
                verdict := 'head';
                exit;
            end if;
        end if;
        for i in 1 .. coalesce(jsonb_array_length(p_entries), 0) loop
            x := p_entries->(i - 1);
            select y.* into e from {schema}.entry y
                where y.thread = t.key and y.name = decode(x->>'name', 'hex');
            if {schema}.is_held_1(e, x, p_entry_bodies[i], v_now) then
                verdict := 'entry';
                number := i - 1;
                exit;
            end if;
        end loop;
        exit when verdict is not null or not v_is_new;
        insert into {schema}.thread as y (digest, tenant_digest, tenant, id, generation, created_at, updated_at)
            values (p_digest, p_tenant_digest, p_tenant, p_thread, p_token, v_now, v_now)
            on conflict (digest) do nothing
            returning y.key, y.generation, y.revision, y.epoch, y.seq
            into t.key, t.generation, t.revision, t.epoch, t.seq;
        exit when found;  -- else somebody made it meanwhile: look again
    end loop;
    if verdict is not null then  -- a checkpoint that is there already is the answer, whatever else does not hold
        perform 1 from {schema}.checkpoint c where c.thread = t.key and c.name = p_name;
        if found then
            verdict := 'existing';
        end if;
        return;
    end if;

    revision := t.revision + 1;
    epoch := greatest(t.epoch, p_epoch);
    seq := t.seq;
    if p_id is not null then
        seq := seq + 1;
        v_bytes := octet_length(p_body);
        created_at := case when p_created_at > 0 then p_created_at else v_now end;
        if not p_follows then
            parent := p_parent;
        end if;
        insert into {schema}.checkpoint values (
            t.key, p_name, p_space, epoch, seq, created_at, p_size, p_added, p_step, p_version, p_format,
            p_namespace, p_id, parent, p_run, p_source, p_metadata, p_checksum, p_chunks, p_body
        ) on conflict (thread, name) do nothing;
        if not found then  -- it is there already; first of all inserts, so that nothing else was changed
            verdict := 'existing';
            revision := t.revision;
            return;
        end if;
    end if;
    verdict := 'done';
    generation := t.generation;
    if p_names is not null then
        v_bytes := v_bytes + {schema}.chunks_1(t.key, p_names, p_data, revision);
    end if;
    for i in 1 .. coalesce(jsonb_array_length(p_writes), 0) loop
        v_fresh := {schema}.write_1(
            t.key, p_writes->(i - 1), p_write_bodies[i], p_write_chunks[i], epoch, revision
        );
        if v_fresh is not null then
            accepted := accepted || (i - 1)::bigint;
            v_writes := v_writes + v_fresh::int;
        end if;
    end loop;
    for i in 1 .. coalesce(jsonb_array_length(p_entries), 0) loop
        e := {schema}.settle_1(t.key, p_tenant_digest, p_entries->(i - 1), p_entry_bodies[i], revision, v_now);
        settled := coalesce(settled, '[]') || jsonb_build_array(
            jsonb_build_object('fence', e.fence, 'until', e.until, 'clock', e.clock, 'status', e.status)
        );
        settled_bodies := settled_bodies || e.body;
    end loop;
    update {schema}.thread y set
        revision = save_1.revision, epoch = save_1.epoch, seq = save_1.seq, updated_at = v_now,
        checkpoints = y.checkpoints + (save_1.seq - y.seq), writes = y.writes + v_writes, stored = y.stored + v_bytes
        where y.key = t.key;
end
$outlive$;

-- Copy chunks to another thread; return its generation.
create function {schema}.share_1(
    p_wait text, p_source bytea, p_digest bytea, p_tenant_digest bytea, p_tenant text, p_thread text,
    p_token bigint, p_names bytea
) returns bigint language plpgsql as $outlive$
declare
    t {schema}.thread;
    v_now bigint;
    v_bytes bigint;
begin
    perform set_config('lock_timeout', p_wait, true);
    v_now := {schema}.now_us();
    insert into {schema}.thread (digest, tenant_digest, tenant, id, generation, created_at, updated_at)
        values (p_digest, p_tenant_digest, p_tenant, p_thread, p_token, v_now, v_now)
        on conflict (digest) do nothing;
    select y.* into strict t from {schema}.thread y where y.digest = p_digest for update;
    with put as (
        insert into {schema}.chunk as x (thread, name, revision, data)
            select t.key, c.name, t.revision + 1, c.data
            from generate_series(1, octet_length(p_names), 16) n
            join {schema}.thread s on s.digest = p_source
            join {schema}.chunk c on c.thread = s.key and c.name = substr(p_names, n, 16)
            on conflict (thread, name) do update set revision = excluded.revision
            returning case when x.xmax = 0 then octet_length(x.data) else 0 end as bytes
    )
    select coalesce(sum(put.bytes), 0) into v_bytes from put;
    update {schema}.thread y set revision = t.revision + 1, updated_at = v_now, stored = y.stored + v_bytes
        where y.key = t.key;
    return t.generation;
end
$outlive$;
