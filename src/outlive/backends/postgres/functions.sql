-- The functions of outlive in PostgreSQL. {schema} is replaced by the quoted name of the schema.
-- Everything here ends in the number of this set. A version of outlive with other functions gives them
-- the next number, and adds them when it opens a store that has not got them: processes of both versions
-- can work on one store.

create function {schema}.now_us_1() returns bigint language sql volatile as
    'select (extract(epoch from clock_timestamp()) * 1000000)::bigint';

create aggregate {schema}.xor_1(bigint) (sfunc = int8xor, stype = bigint, initcond = '0');

-- Row checksums -----------------------------------------------------------------------------------
-- Not declared immutable: the server would not inline them, and a call would cost ten times as
-- much.

create function {schema}.row_checksum_1(p_bytes bytea, p_text text) returns bigint language sql stable as
    $outlive$select ('x' || encode(substr(sha256(p_bytes || convert_to(p_text, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint$outlive$;

create function {schema}.checkpoint_row_checksum_1(
    p_digest bytea, p_checksum bytea, p_epoch bigint, p_seq bigint, p_created_at bigint, p_parent text
) returns bigint language sql stable as $outlive$
    select {schema}.row_checksum_1(
        p_digest || p_checksum, p_epoch || ' ' || p_seq || ' ' || p_created_at || coalesce(' ' || p_parent, '')
    )
$outlive$;

create function {schema}.write_row_checksum_1(
    p_digest bytea, p_checksum bytea, p_epoch bigint, p_fence bigint, p_revision bigint
) returns bigint language sql stable as $outlive$
    select {schema}.row_checksum_1(p_digest || p_checksum, p_epoch || ' ' || p_fence || ' ' || p_revision)
$outlive$;

-- XOR `until`, which the sums of a thread leave out: a renewed lease changes no other row.
create function {schema}.entry_row_checksum_1(p_digest bytea, e {schema}.entry) returns bigint language sql stable as $outlive$
    select {schema}.row_checksum_1(
        p_digest || e.name || e.tenant_digest || e.checksum,
        e.epoch || ' ' || e.fence || ' ' || e.revision
            || E'\n' || e.clock || E'\n' || e.status || E'\n' || e.kind || E'\n' || e.key
    ) # e.until
$outlive$;

create function {schema}.thread_row_checksum_1(t {schema}.thread) returns bigint language sql stable as $outlive$
    select {schema}.row_checksum_1(
        t.digest || t.tokens || coalesce(t.metadata_checksum, ''),
        t.key || ' ' || t.generation || ' ' || t.revision || ' ' || t.epoch || ' ' || t.seq || ' ' || t.checkpoints || ' ' || t.writes || ' '
            || t.stored || ' ' || t.created_at || ' ' || t.updated_at || ' ' || t.metadata_version || ' ' || t.root_checkpoints
            || ' ' || coalesce(t.root_head, 0) || ' ' || t.checkpoint_sum || ' ' || t.run_sum || ' ' || t.step_sum
    )
$outlive$;

-- Return the channel that work in a tenant is notified on.
create function {schema}.channel_1(p_tenant_digest bytea) returns text language sql stable as $outlive$
    select 'outlive_' || encode(
        substr(sha256(convert_to($schema${schema}$schema$, 'UTF8') || p_tenant_digest), 1, 16), 'hex'
    )
$outlive$;

-- Saving -----------------------------------------------------------------------------------------

-- Whether an entry may not replace the stored one: it is older, not expected, or a lease runs.
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
    return (v->>'expect_lapsed')::boolean and is_there and e.clock in ('postgresql', 'wall') and e.until > p_now;
end
$outlive$;

create type {schema}.settled_1 as (
    fence bigint, until bigint, clock text, status text, body bytea,
    delta bigint                             -- what changes the sum of the row checksums
);

-- Put or remove an entry; return it as it is stored then.
create function {schema}.settle_1(
    p_thread bigint, p_digest bytea, p_tenant_digest bytea, v jsonb, p_body bytea, p_revision bigint, p_now bigint
) returns {schema}.settled_1
language plpgsql as $outlive$
declare
    e {schema}.entry;
    s {schema}.settled_1;
begin
    select x.* into e from {schema}.entry x where x.thread = p_thread and x.name = decode(v->>'name', 'hex');
    s.delta := coalesce(e.row_checksum # e.until, 0);
    if p_body is null then
        e.status := coalesce(nullif(v->>'status', ''), e.status, '');
        e.checksum := case when e.body is null then decode(v->>'checksum', 'hex') else e.checksum end;
        e.body := coalesce(e.body, '');
    else
        e.status := v->>'status';
        e.checksum := decode(v->>'checksum', 'hex');
        e.body := p_body;
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
        e.clock := case v->>'clock' when 'wall' then 'wall' else 'postgresql' end;
    end if;
    s.fence := e.fence;
    s.until := e.until;
    s.clock := e.clock;
    s.status := e.status;
    s.body := e.body;
    if (v->>'gone')::boolean then
        delete from {schema}.entry x where x.thread = e.thread and x.name = e.name;
        return s;
    end if;
    e.row_checksum := {schema}.entry_row_checksum_1(p_digest, e);
    s.delta := s.delta # e.row_checksum # e.until;
    insert into {schema}.entry values (
        e.thread, e.name, e.tenant_digest, e.kind, e.key, e.status, e.epoch, e.fence, e.revision, e.until, e.clock,
        e.checksum, e.row_checksum, e.body
    )
        on conflict (thread, name) do update set
            tenant_digest = excluded.tenant_digest, kind = excluded.kind, key = excluded.key,
            status = excluded.status, epoch = excluded.epoch, fence = excluded.fence, revision = excluded.revision,
            until = excluded.until, clock = excluded.clock, checksum = excluded.checksum, row_checksum = excluded.row_checksum,
            body = excluded.body;
    return s;
end
$outlive$;

create type {schema}.written_1 as (
    is_new boolean,                          -- null when the write that is there stays
    delta bigint                             -- what changes the sum of the row checksums
);

-- Put a pending write.
create function {schema}.write_1(
    p_thread bigint, p_digest bytea, v jsonb, p_body bytea, p_chunks bytea, p_epoch bigint, p_revision bigint
) returns {schema}.written_1
language plpgsql as $outlive$
declare
    is_stamped boolean := v->>'stamp';
    v_index bigint := v->>'index';
    v_pair bytea := decode(v->>'pair', 'hex');
    v_task bytea := decode(v->>'task_digest', 'hex');
    v_checksum bytea := decode(v->>'checksum', 'hex');
    v_epoch bigint := case when is_stamped then p_epoch else (v->>'epoch')::bigint end;
    v_fence bigint := v->>'fence';
    v_revision bigint := case when is_stamped then p_revision else (v->>'revision')::bigint end;
    v_row_checksum bigint := {schema}.write_row_checksum_1(p_digest, v_checksum, v_epoch, v_fence, v_revision);
    v_old bigint;
    v_put {schema}.written_1;
begin
    if v_index < 0 then  -- the one kind that is overwritten
        select x.row_checksum into v_old from {schema}.write x
            where x.thread = p_thread and x.pair = v_pair and x.task_digest = v_task and x.idx = v_index;
    end if;
    insert into {schema}.write as x values (
        p_thread, v_pair, v_task, v_index, v_epoch, v_fence, v_revision,
        v->>'namespace', v->>'checkpoint', v->>'task', v->>'channel', v->>'path', v_checksum, v_row_checksum,
        p_chunks, p_body
    )
    on conflict (thread, pair, task_digest, idx) do update set
        epoch = excluded.epoch, fence = excluded.fence, revision = excluded.revision,
        channel = excluded.channel, path = excluded.path, checksum = excluded.checksum, row_checksum = excluded.row_checksum,
        chunks = excluded.chunks, body = excluded.body
        where x.idx < 0 and (is_stamped
            or (excluded.epoch, excluded.fence, excluded.revision, excluded.body)
                > (x.epoch, x.fence, x.revision, x.body))
    returning x.xmax = 0 into v_put.is_new;
    v_put.delta := v_row_checksum # coalesce(v_old, 0);
    return v_put;
end
$outlive$;

-- Count writes of the pair that v is of.
create function {schema}.count_1(p_thread bigint, v jsonb, p_rows bigint, p_delta bigint) returns void
language plpgsql as $outlive$
begin
    update {schema}.write x set epoch = x.epoch + p_rows, fence = x.fence # p_delta
        where x.thread = p_thread and x.pair = decode(v->>'pair', 'hex') and x.task_digest = '' and x.idx = 0;
    if not found then
        insert into {schema}.write values (
            p_thread, decode(v->>'pair', 'hex'), '', 0, p_rows, p_delta, 0, v->>'namespace', v->>'checkpoint',
            '', '', '', '', 0, '', ''
        );
    end if;
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

-- One ordinary save: expectations, checkpoint, chunks, writes and entries in one statement, under
-- the lock of the thread's row. The client decides all else, in a transaction with the same lock.
-- The verdict is 'done', 'existing' or the name of the expectation that failed. Unless it is
-- 'done', nothing was changed. A crash at any line leaves nothing: the transaction is rolled back.
create function {schema}.save_1(
    p_wait text, p_digest bytea, p_tenant_digest bytea, p_tenant text, p_thread text, p_new bigint,
    p_token bytea, p_void bytea, p_generation bigint, p_epoch bigint,
    p_expects boolean, p_expect_space bytea, p_expect_head text,
    p_fence_name bytea, p_fence_epoch bigint, p_fence bigint,
    p_name bytea, p_space bytea, p_namespace text, p_id text, p_parent text, p_follows boolean,
    p_run text, p_step bigint, p_source text, p_size bigint, p_added bigint, p_created_at bigint,
    p_version bigint, p_format int, p_metadata jsonb, p_checksum bytea, p_chunks bytea, p_body bytea,
    p_names bytea, p_data bytea[], p_shared bytea,
    p_writes jsonb, p_write_bodies bytea[], p_write_chunks bytea[],
    p_entries jsonb, p_entry_bodies bytea[],
    out verdict text, out generation bigint, out revision bigint, out epoch bigint, out seq bigint,
    out created_at bigint, out parent text, out head text, out number bigint,
    out accepted bigint[], out settled jsonb, out settled_bodies bytea[], out chunks bytea
) language plpgsql as $outlive$
declare
    t {schema}.thread;
    e {schema}.entry;
    s {schema}.settled_1;
    x jsonb;
    v_now bigint;
    v_is_new boolean;
    v_was_made boolean := false;
    v_newest text;
    v_row_checksum bigint;
    v_pointer bigint;
    v_bytes bigint := 0;
    v_put {schema}.written_1;
    v_rows bigint := 0;
    v_delta bigint := 0;
    v_found bigint;
    v_settled jsonb[];
begin
    -- 1. Lock the thread's row. Later saves wait here until this transaction ends.
    perform set_config('lock_timeout', p_wait, true);
    loop
        select y.* into t from {schema}.thread y where y.digest = p_digest for update;
        v_is_new := not found;
        v_now := {schema}.now_us_1();
        generation := t.generation;
        revision := t.revision;
        if t.row_checksum <> {schema}.thread_row_checksum_1(t) then
            verdict := 'damaged';
            head := 'its row does not match its checksum';
            return;
        end if;
        if position(p_token in t.tokens) > 0 then  -- sent again after a lost answer, or late
            verdict := 'repeated';
            return;
        end if;
        -- 2. Check what the save expects: the fence first, so that a process that lost its lease
        --    learns just that.
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
        if p_shared is not null then  -- a standby that took over may lack what the client saw
            -- A length in a subquery: the planner does not know it, and keeps one plan for all saves.
            select count(*) into v_found from generate_series(1, (select octet_length(p_shared)), 16) n
                cross join lateral (
                    select 1 from {schema}.chunk k where k.thread = t.key and k.name = substr(p_shared, n, 16) limit 1
                ) k;
        end if;
        if p_generation is not null and p_generation is distinct from t.generation or 16 * v_found < octet_length(p_shared)
        then
            -- With the chunks of the head, the client can try again without reading the thread.
            verdict := 'generation';
            select c.chunks into chunks from {schema}.checkpoint c
                where c.thread = t.key and c.space = p_space order by c.epoch desc, c.seq desc limit 1;
            exit;
        end if;
        -- The newest checkpoint: by the index, compared with the pointer in the thread's row. They
        -- differ when either was lost or is an older copy.
        if p_id is not null and not v_is_new then
            select c.id, c.row_checksum into v_newest, v_row_checksum from {schema}.checkpoint c
                where c.thread = t.key and c.space = p_space and (c.epoch, c.seq) = (
                    select y.epoch, y.seq from {schema}.checkpoint y
                    where y.thread = t.key and y.space = p_space order by y.epoch desc, y.seq desc limit 1
                )
                order by c.id desc limit 1;
            v_pointer := t.root_head;
            if p_space <> '' then
                select y.head into v_pointer from {schema}.space y where y.thread = t.key and y.space = p_space;
            end if;
            if v_row_checksum is distinct from v_pointer then
                verdict := 'damaged';
                head := 'its newest checkpoint is missing or is not the one that was stored last';
                return;
            end if;
        end if;
        if p_follows then
            parent := v_newest;
        end if;
        if p_expects then
            if p_id is not null and p_expect_space = p_space then
                head := v_newest;
            else
                head := {schema}.newest_1(t, p_expect_space);
            end if;
            if head is distinct from p_expect_head then
                verdict := 'head';
                exit;
            end if;
        end if;
        for i in 1 .. coalesce(jsonb_array_length(p_entries), 0) loop
            x := p_entries->(i - 1);
            if (x->>'expect_lapsed')::boolean then  -- a renewal locks no thread: wait for it
                perform 1 from {schema}.entry y
                    where y.thread = t.key and y.name = decode(x->>'name', 'hex') for update;
            end if;
            select y.* into e from {schema}.entry y
                where y.thread = t.key and y.name = decode(x->>'name', 'hex');
            if {schema}.is_held_1(e, x, p_entry_bodies[i], v_now) then
                verdict := 'entry';
                number := i - 1;
                exit;
            end if;
        end loop;
        exit when verdict is not null or not v_is_new;
        -- 3. Create the rows of a new thread. The roster knows each thread that ever existed.
        insert into {schema}.roster as y (digest, tenant_digest, tenant, id)
            values (p_digest, p_tenant_digest, p_tenant, p_thread)
            on conflict (digest) do nothing returning y.key into t.key;
        if found then
            insert into {schema}.thread as y (key, digest, tenant_digest, tenant, id, generation, created_at, updated_at)
                values (t.key, p_digest, p_tenant_digest, p_tenant, p_thread, p_new, v_now, v_now)
                returning y.* into t;
            exit;
        end if;
        -- Another save has created the thread meanwhile: look again. If there is still no row, it
        -- was lost.
        exit when v_was_made;
        v_was_made := true;
    end loop;
    if v_is_new then
        perform 1 from {schema}.roster y where y.digest = p_digest and y.key is distinct from t.key;
        if found then
            verdict := 'damaged';
            head := 'its row is gone';
            return;
        end if;
    end if;
    -- A checkpoint that is stored already is the answer, whichever expectation failed.
    if verdict is not null then
        perform 1 from {schema}.checkpoint c where c.thread = t.key and c.name = p_name;
        if found then
            verdict := 'existing';
        end if;
        return;
    end if;

    -- 4. The checkpoint, before all else: if it is stored already, nothing else has changed.
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
        v_row_checksum := {schema}.checkpoint_row_checksum_1(p_digest, p_checksum, epoch, seq, created_at, parent);
        insert into {schema}.checkpoint values (
            t.key, p_name, p_space, epoch, seq, created_at, p_size, p_added, p_step, p_version, p_format,
            p_namespace, p_id, parent, p_run, p_source, p_metadata, p_checksum, v_row_checksum, p_chunks, p_body
        ) on conflict (thread, name) do nothing;
        if not found then
            verdict := 'existing';
            revision := t.revision;
            return;
        end if;
        t.checkpoints := t.checkpoints + 1;
        t.checkpoint_sum := t.checkpoint_sum # v_row_checksum;
        if p_space = '' then
            t.root_checkpoints := t.root_checkpoints + 1;
            t.root_head := v_row_checksum;
        else
            insert into {schema}.space as y values (t.key, p_space, 1, v_row_checksum)
                on conflict (thread, space) do update set checkpoints = y.checkpoints + 1, head = excluded.head;
        end if;
    end if;
    verdict := 'done';
    generation := t.generation;
    -- 5. Chunks, writes and entries.
    if p_names is not null then
        v_bytes := v_bytes + {schema}.chunks_1(t.key, p_names, p_data, revision);
    end if;
    for i in 1 .. coalesce(jsonb_array_length(p_writes), 0) loop
        v_put := {schema}.write_1(
            t.key, p_digest, p_writes->(i - 1), p_write_bodies[i], p_write_chunks[i], epoch, revision
        );
        if v_put.is_new is not null then
            accepted := accepted || (i - 1)::bigint;
            v_rows := v_rows + v_put.is_new::int;
            v_delta := v_delta # v_put.delta;
        end if;
        if v_delta <> 0 and p_writes->(i - 1)->'pair' is distinct from p_writes->i->'pair' then
            perform {schema}.count_1(t.key, p_writes->(i - 1), v_rows, v_delta);
            t.writes := t.writes + v_rows;
            v_rows := 0;
            v_delta := 0;
        end if;
    end loop;
    for i in 1 .. coalesce(jsonb_array_length(p_entries), 0) loop
        x := p_entries->(i - 1);
        s := {schema}.settle_1(t.key, p_digest, p_tenant_digest, x, p_entry_bodies[i], revision, v_now);
        v_settled := v_settled
            || jsonb_build_object('fence', s.fence, 'until', s.until, 'clock', s.clock, 'status', s.status);
        settled_bodies := settled_bodies || s.body;
        if x ? 'wakes' then
            perform pg_notify({schema}.channel_1(p_tenant_digest), '');
        end if;
        if x->>'name' like '01%' then
            t.step_sum := t.step_sum # s.delta;
        else
            t.run_sum := t.run_sum # s.delta;
        end if;
    end loop;
    settled := to_jsonb(v_settled);
    -- 6. The thread's row at last: its counters, sums and checksum vouch for all other rows.
    t.revision := revision;
    t.epoch := epoch;
    t.seq := seq;
    t.updated_at := v_now;
    t.stored := t.stored + v_bytes;
    t.tokens := substr(p_token || p_void || t.tokens, 1, 64);
    update {schema}.thread y set
        revision = t.revision, epoch = t.epoch, seq = t.seq, updated_at = t.updated_at, checkpoints = t.checkpoints,
        writes = t.writes, stored = t.stored, root_checkpoints = t.root_checkpoints, root_head = t.root_head,
        checkpoint_sum = t.checkpoint_sum, run_sum = t.run_sum, step_sum = t.step_sum, tokens = t.tokens,
        row_checksum = {schema}.thread_row_checksum_1(t)
        where y.key = t.key;
end
$outlive$;

-- Many commits that only have entries, of as many threads, in a few statements for all of them.
-- The threads come in the order of their digests, so that two such calls do not deadlock. A commit
-- whose revision is null in the answer has changed nothing: it is refused, was done before, or its
-- thread is damaged or being created by another. `save_1` tells which.
create function {schema}.put_1(
    p_wait text, p_digests bytea[], p_tenant_digests bytea[], p_tenants text[], p_threads text[], p_new bigint[],
    p_tokens bytea[], p_voids bytea[], p_epochs bigint[],
    p_fence_names bytea[], p_fence_epochs bigint[], p_fences bigint[],
    p_begins boolean[],                      -- whether it may create its thread
    p_wakes bytea[],                         -- digests of tenants in which there is work
    p_commits bigint[],                      -- of each entry: which commit it belongs to
    p_names bytea[], p_kinds text[], p_keys text[], p_statuses text[],
    p_entry_epochs bigint[], p_entry_fences bigint[], p_entry_revisions bigint[],
    p_untils bigint[], p_clocks text[], p_leases bigint[],
    p_expect_epochs bigint[], p_expect_fences bigint[], p_expect_revisions bigint[], p_expect_lapsed boolean[],
    p_gone boolean[], p_checksums bytea[], p_bodies bytea[]
) returns table (
    generation bigint, revision bigint, epoch bigint, now_us bigint,
    kept_statuses text[], kept_bodies bytea[]  -- of the entries without a body, in their order
) language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $outlive$
#variable_conflict use_column
declare
    v_locked bigint[];
    v_keys bigint[];
    v_made bytea[];
    v_now bigint;
begin
    -- 1. Lock the rows of the threads. Later commits wait here until this transaction ends.
    perform set_config('lock_timeout', p_wait, true);
    select array_agg(q.key) into v_locked from (
        select y.key from {schema}.thread y where y.digest = any(p_digests) order by y.digest for update
    ) q;
    v_now := {schema}.now_us_1();
    -- 2. Enter new threads into the roster.
    if coalesce(cardinality(v_locked), 0) < cardinality(p_digests) then
        with made as (
            insert into {schema}.roster as y (digest, tenant_digest, tenant, id)
                select c.digest, c.tenant_digest, c.tenant, c.id
                from unnest(p_digests, p_tenant_digests, p_tenants, p_threads, p_begins)
                    c(digest, tenant_digest, tenant, id, begins)
                where c.begins and not exists (select 1 from {schema}.thread x where x.digest = c.digest)
                order by c.digest
                on conflict (digest) do nothing returning y.key, y.digest
        )
        select array_agg(m.key), array_agg(m.digest) into v_keys, v_made from made m;
    end if;
    perform pg_notify({schema}.channel_1(w), '') from unnest(p_wakes) w;
    if true = any(p_expect_lapsed) then  -- a renewal locks no thread: wait for it
        perform 1 from unnest(p_commits, p_names, p_expect_lapsed) u(number, name, expect_lapsed)
            cross join lateral (
                select y.key from {schema}.thread y where y.digest = p_digests[u.number] limit 1
            ) t
            cross join lateral (
                select 1 from {schema}.entry y where y.thread = t.key and y.name = u.name limit 1 for update
            ) e
            where u.expect_lapsed;
    end if;
    -- 3. Check what each commit expects, and store those that may be done. The thread's row vouches
    --    for all others by its sums and its row_checksum.
    return query
    with c as materialized (
        select * from unnest(
            p_digests, p_tenant_digests, p_tenants, p_threads, p_new, p_tokens, p_voids, p_epochs,
            p_fence_names, p_fence_epochs, p_fences
        ) with ordinality u(
            digest, tenant_digest, tenant, id, new, token, void, epoch, fence_name, fence_epoch, fence, number
        )
    ),
    t as materialized (
        select c.number, c.digest, c.tenant_digest, c.tenant, c.id, y.key, false as is_new, y.generation,
            y.revision + 1 as revision, greatest(y.epoch, c.epoch) as epoch,
            substr(c.token || c.void || y.tokens, 1, 64) as tokens
        from c join {schema}.thread y on y.digest = c.digest
        left join {schema}.entry e on e.thread = y.key and e.name = c.fence_name
        where y.key = any(v_locked) and y.row_checksum = {schema}.thread_row_checksum_1(y)
            and position(c.token in y.tokens) = 0 and (c.epoch is null or c.epoch >= y.epoch)
            and (c.fence_name is null
                or (e.epoch, e.fence, e.status) = (c.fence_epoch, c.fence, 'running'))
        union all
        select c.number, c.digest, c.tenant_digest, c.tenant, c.id, m.key, true, c.new,
            1, greatest(0, c.epoch), substr(c.token || c.void, 1, 64)
        from c join unnest(v_made, v_keys) m(digest, key) on m.digest = c.digest
    ),
    x as materialized (
        select u.*, t.key as thread, t.revision as commit_revision, t.digest, t.tenant_digest,
            e.row_checksum # e.until as old_sum, e.status as old_status, e.checksum as old_checksum, e.body as old_body,
            e.thread is not null
                and (u.gone or (e.status, e.body, e.epoch, e.fence, e.revision)
                    is distinct from (u.status, u.body, u.epoch, u.fence, u.revision))
                and (
                    (u.fence <> -1 and not u.gone
                        and (u.epoch, u.fence, u.revision) < (e.epoch, e.fence, e.revision))
                    or (u.expect_epoch, u.expect_fence, u.expect_revision) <> (e.epoch, e.fence, e.revision)
                    or (u.expect_lapsed and e.clock in ('postgresql', 'wall') and e.until > v_now)
                )
            or e.thread is null and (u.expect_epoch, u.expect_fence, u.expect_revision) <> (0, 0, 0) as is_held
        from unnest(
            p_commits, p_names, p_kinds, p_keys, p_statuses, p_entry_epochs, p_entry_fences, p_entry_revisions,
            p_untils, p_clocks, p_leases, p_expect_epochs, p_expect_fences, p_expect_revisions, p_expect_lapsed,
            p_gone, p_checksums, p_bodies
        ) with ordinality u(
            number, name, kind, key, status, epoch, fence, revision, until, clock, lease_us,
            expect_epoch, expect_fence, expect_revision, expect_lapsed, gone, checksum, body, place
        )
        join t on t.number = u.number
        left join {schema}.entry e on e.thread = t.key and e.name = u.name
    ),
    held as materialized (select distinct x.number from x where x.is_held),
    r as materialized (
        select x.number, x.place, x.thread, x.digest, x.tenant_digest, x.name, x.kind, x.key, x.epoch, x.revision, x.gone,
            x.body is null as is_kept, coalesce(x.old_sum, 0) as old_sum,
            case when x.fence = -1 then x.commit_revision else x.fence end as fence,
            case when x.body is null then coalesce(nullif(x.status, ''), x.old_status, '') else x.status end as status,
            case when x.body is null then coalesce(x.old_checksum, x.checksum) else x.checksum end as checksum,
            coalesce(x.body, x.old_body, '') as body,
            case when x.lease_us is null then x.until else v_now + x.lease_us end as until,
            case when x.lease_us is null or x.clock = 'wall' then x.clock else 'postgresql' end as clock
        from x where x.number not in (select h.number from held h)
    ),
    s as materialized (
        select r.*, case when r.gone then 0 else {schema}.row_checksum_1(
            r.digest || r.name || r.tenant_digest || r.checksum,
            r.epoch || ' ' || r.fence || ' ' || r.revision
                || E'\n' || r.clock || E'\n' || r.status || E'\n' || r.kind || E'\n' || r.key
        ) end as new_sum
        from r
    ),
    removed as (
        delete from {schema}.entry e using s where s.gone and e.thread = s.thread and e.name = s.name
    ),
    put as (
        insert into {schema}.entry
            select s.thread, s.name, s.tenant_digest, s.kind, s.key, s.status, s.epoch, s.fence, s.revision, s.until,
                s.clock, s.checksum, s.new_sum # s.until, s.body
            from s where not s.gone
            on conflict (thread, name) do update set
                tenant_digest = excluded.tenant_digest, kind = excluded.kind, key = excluded.key,
                status = excluded.status, epoch = excluded.epoch, fence = excluded.fence,
                revision = excluded.revision, until = excluded.until, clock = excluded.clock,
                checksum = excluded.checksum, row_checksum = excluded.row_checksum, body = excluded.body
    ),
    d as materialized (
        select s.number,
            {schema}.xor_1(case when get_byte(s.name, 0) = 0 then s.old_sum # s.new_sum else 0 end) as runs,
            {schema}.xor_1(case when get_byte(s.name, 0) = 1 then s.old_sum # s.new_sum else 0 end) as steps,
            array_agg(s.status order by s.place) filter (where s.is_kept) as kept_statuses,
            array_agg(s.body order by s.place) filter (where s.is_kept) as kept_bodies
        from s group by s.number
    ),
    changed as (
        update {schema}.thread y set
            revision = t.revision, epoch = t.epoch, updated_at = v_now, tokens = t.tokens,
            run_sum = y.run_sum # d.runs, step_sum = y.step_sum # d.steps,
            row_checksum = {schema}.row_checksum_1(
                y.digest || t.tokens || coalesce(y.metadata_checksum, ''),
                y.key || ' ' || y.generation || ' ' || t.revision || ' ' || t.epoch || ' ' || y.seq || ' '
                    || y.checkpoints || ' ' || y.writes || ' ' || y.stored || ' ' || y.created_at || ' ' || v_now
                    || ' ' || y.metadata_version || ' ' || y.root_checkpoints || ' ' || coalesce(y.root_head, 0)
                    || ' ' || y.checkpoint_sum || ' ' || (y.run_sum # d.runs) || ' ' || (y.step_sum # d.steps)
            )
        from t join d on d.number = t.number where not t.is_new and y.key = t.key
    ),
    begun as (
        insert into {schema}.thread as y (
            key, digest, tenant_digest, tenant, id, generation, revision, epoch, created_at, updated_at,
            run_sum, step_sum, tokens, row_checksum
        )
        select t.key, t.digest, t.tenant_digest, t.tenant, t.id, t.generation, t.revision, t.epoch, v_now, v_now,
            d.runs, d.steps, t.tokens, {schema}.row_checksum_1(
                t.digest || t.tokens,
                t.key || ' ' || t.generation || ' ' || t.revision || ' ' || t.epoch || ' 0 0 0 0 ' || v_now || ' '
                    || v_now || ' 0 0 0 0 ' || d.runs || ' ' || d.steps
            )
        from t join d on d.number = t.number where t.is_new
    )
    select t.generation, case when d.number is not null then t.revision end, t.epoch, v_now,
        d.kept_statuses, d.kept_bodies
    from c left join t on t.number = c.number left join d on d.number = c.number order by c.number;
end
$outlive$;

-- The same for one commit, by plain statements: the plan of put_1 costs more than what it does for one.
-- Of each entry there are four texts (kind, key, status, clock), three blobs (name, checksum, body) and
-- ten numbers (epoch, fence, revision, until, lease, expected epoch, fence and revision, whether its
-- lease must have expired, whether it goes). No lease and no expectation are -1.
create function {schema}.put_one_1(
    p_wait text, p_digest bytea, p_tenant_digest bytea, p_tenant text, p_thread text, p_new bigint,
    p_token bytea, p_void bytea, p_epoch bigint, p_fence_name bytea, p_fence_epoch bigint, p_fence bigint,
    p_begins boolean, p_wakes boolean, p_texts text[], p_blobs bytea[], p_numbers bigint[],
    out generation bigint, out revision bigint, out epoch bigint, out now_us bigint,
    out kept_statuses text[], out kept_bodies bytea[]
) language plpgsql as $outlive$
declare
    t {schema}.thread;
    e {schema}.entry;
    v_old {schema}.entry[];
    v_is_new boolean;
    v_is_there boolean;
    v_is_fenced boolean := p_fence_name is null;
    v_sum bigint;
begin
    -- 1. Lock the thread's row, or enter a new thread into the roster.
    perform set_config('lock_timeout', p_wait, true);
    select y.* into t from {schema}.thread y where y.digest = p_digest for update;
    v_is_new := not found;
    now_us := {schema}.now_us_1();
    if v_is_new then
        if not p_begins then
            return;
        end if;
        insert into {schema}.roster as y (digest, tenant_digest, tenant, id)
            values (p_digest, p_tenant_digest, p_tenant, p_thread)
            on conflict (digest) do nothing returning y.key, p_new, 0, 0, 0, 0, ''
            into t.key, t.generation, t.revision, t.epoch, t.run_sum, t.step_sum, t.tokens;
        if not found then
            return;
        end if;
    elsif t.row_checksum <> {schema}.thread_row_checksum_1(t) or position(p_token in t.tokens) > 0 or p_epoch < t.epoch
    then
        return;
    end if;
    -- 2. Check what the commit expects. The entry of its fence is most often one that it renews.
    for i in 1 .. case when v_is_new then 0 else cardinality(p_blobs) / 3 end loop
        if p_numbers[10 * i - 1] = 1 then  -- a renewal locks no thread: wait for it
            perform 1 from {schema}.entry y where y.thread = t.key and y.name = p_blobs[3 * i - 2] for update;
        end if;
        select y.* into e from {schema}.entry y where y.thread = t.key and y.name = p_blobs[3 * i - 2];
        v_old[i] := e;
        if not found then
            if p_numbers[10 * i - 4] > 0 or p_numbers[10 * i - 3] > 0 or p_numbers[10 * i - 2] > 0 then
                return;
            end if;
        elsif p_numbers[10 * i] = 1 or e.status is distinct from p_texts[4 * i - 1] or e.body is distinct from p_blobs[3 * i]
            or (e.epoch, e.fence, e.revision)
                is distinct from (p_numbers[10 * i - 9], p_numbers[10 * i - 8], p_numbers[10 * i - 7])
        then
            if p_numbers[10 * i - 8] <> -1 and p_numbers[10 * i] = 0
                and (p_numbers[10 * i - 9], p_numbers[10 * i - 8], p_numbers[10 * i - 7]) < (e.epoch, e.fence, e.revision)
                or p_numbers[10 * i - 4] <> -1
                and (p_numbers[10 * i - 4], p_numbers[10 * i - 3], p_numbers[10 * i - 2]) <> (e.epoch, e.fence, e.revision)
                or p_numbers[10 * i - 1] = 1 and e.clock in ('postgresql', 'wall') and e.until > now_us
            then
                return;
            end if;
        end if;
        v_is_fenced := v_is_fenced or e.name = p_fence_name and e.status = 'running'
            and e.epoch = p_fence_epoch and e.fence = p_fence;
    end loop;
    if not coalesce(v_is_fenced, false) then
        perform 1 from {schema}.entry y where y.thread = t.key and y.name = p_fence_name
            and y.epoch = p_fence_epoch and y.fence = p_fence and y.status = 'running';
        if not found then
            return;
        end if;
    end if;
    -- 3. Store the entries. Nothing refuses from here on.
    generation := t.generation;
    revision := t.revision + 1;
    epoch := greatest(t.epoch, p_epoch);
    for i in 1 .. cardinality(p_blobs) / 3 loop
        e := v_old[i];
        v_is_there := e.thread is not null;
        v_sum := coalesce(e.row_checksum # e.until, 0);
        e.thread := t.key;
        e.tenant_digest := p_tenant_digest;
        e.kind := p_texts[4 * i - 3];
        e.key := p_texts[4 * i - 2];
        e.name := p_blobs[3 * i - 2];
        e.epoch := p_numbers[10 * i - 9];
        e.fence := case p_numbers[10 * i - 8] when -1 then revision else p_numbers[10 * i - 8] end;
        e.revision := p_numbers[10 * i - 7];
        if p_numbers[10 * i - 5] = -1 then
            e.until := p_numbers[10 * i - 6];
            e.clock := p_texts[4 * i];
        else
            e.until := now_us + p_numbers[10 * i - 5];
            e.clock := case p_texts[4 * i] when 'wall' then 'wall' else 'postgresql' end;
        end if;
        if p_blobs[3 * i] is null then
            e.status := coalesce(nullif(p_texts[4 * i - 1], ''), e.status, '');
            e.checksum := coalesce(e.checksum, p_blobs[3 * i - 1]);
            e.body := coalesce(e.body, '');
            kept_statuses := kept_statuses || e.status;
            kept_bodies := kept_bodies || e.body;
        else
            e.status := p_texts[4 * i - 1];
            e.checksum := p_blobs[3 * i - 1];
            e.body := p_blobs[3 * i];
        end if;
        if p_numbers[10 * i] = 1 then
            delete from {schema}.entry y where y.thread = e.thread and y.name = e.name;
        else
            e.row_checksum := {schema}.entry_row_checksum_1(p_digest, e);
            v_sum := v_sum # e.row_checksum # e.until;
            if v_is_there then
                update {schema}.entry y set
                    tenant_digest = e.tenant_digest, kind = e.kind, key = e.key, status = e.status, epoch = e.epoch,
                    fence = e.fence, revision = e.revision, until = e.until, clock = e.clock, checksum = e.checksum,
                    row_checksum = e.row_checksum, body = e.body
                    where y.thread = e.thread and y.name = e.name;
            else
                insert into {schema}.entry select e.*;
            end if;
        end if;
        if get_byte(e.name, 0) = 1 then
            t.step_sum := t.step_sum # v_sum;
        else
            t.run_sum := t.run_sum # v_sum;
        end if;
    end loop;
    if p_wakes then
        perform pg_notify({schema}.channel_1(p_tenant_digest), '');
    end if;
    -- 4. The thread's row at last: its sums and checksum vouch for all other rows.
    t.revision := revision;
    t.epoch := epoch;
    t.updated_at := now_us;
    t.tokens := substr(p_token || p_void || t.tokens, 1, 64);
    if v_is_new then
        insert into {schema}.thread (
            key, digest, tenant_digest, tenant, id, generation, revision, epoch, created_at, updated_at,
            run_sum, step_sum, tokens, row_checksum
        ) values (
            t.key, p_digest, p_tenant_digest, p_tenant, p_thread, t.generation, t.revision, t.epoch, now_us, now_us,
            t.run_sum, t.step_sum, t.tokens, {schema}.row_checksum_1(
                p_digest || t.tokens,
                t.key || ' ' || t.generation || ' ' || t.revision || ' ' || t.epoch || ' 0 0 0 0 ' || now_us || ' '
                    || now_us || ' 0 0 0 0 ' || t.run_sum || ' ' || t.step_sum
            )
        );
    else
        update {schema}.thread y set
            revision = t.revision, epoch = t.epoch, updated_at = t.updated_at, run_sum = t.run_sum,
            step_sum = t.step_sum, tokens = t.tokens, row_checksum = {schema}.thread_row_checksum_1(t)
            where y.key = t.key;
    end if;
end
$outlive$;

-- What a client decides --------------------------------------------------------------------------

-- Find or create the row of a thread, and lock it. Return 'made', 'found', or the problem: 'gone',
-- 'row_checksum'. A row that is to be deleted is repaired instead: its counters become the greatest that
-- the other rows of the thread have.
create function {schema}.enter_1(
    p_digest bytea, p_tenant_digest bytea, p_tenant text, p_thread text, p_repairs boolean
) returns text language plpgsql as $outlive$
declare
    t {schema}.thread;
    v_moved {schema}.thread;
    v_made bigint;
begin
    select y.* into t from {schema}.thread y where y.digest = p_digest for update;
    if not found then
        insert into {schema}.roster as y (digest, tenant_digest, tenant, id)
            values (p_digest, p_tenant_digest, p_tenant, p_thread)
            on conflict (digest) do nothing returning y.key into v_made;
        if found then
            insert into {schema}.thread (key, digest, tenant_digest, tenant, id, generation, created_at, updated_at)
                values (v_made, p_digest, p_tenant_digest, p_tenant, p_thread, 0, 0, 0);
            return 'made';
        end if;
        select y.* into t from {schema}.thread y where y.digest = p_digest for update;
        if not found then
            if not p_repairs then
                return 'gone';
            end if;
            insert into {schema}.thread as x (key, digest, tenant_digest, tenant, id, generation, created_at, updated_at)
                select y.key, p_digest, p_tenant_digest, p_tenant, p_thread, 0, {schema}.now_us_1(), 0
                from {schema}.roster y where y.digest = p_digest
                on conflict (key) do update set digest = excluded.digest
                returning x.* into t;
        end if;
    end if;
    if p_repairs then
        -- If the key itself is damaged, the thread's rows have the key of the roster.
        if t.row_checksum <> {schema}.thread_row_checksum_1(t) then
            update {schema}.thread y set key = r.key from {schema}.roster r
                where y.digest = p_digest and r.digest = p_digest
                    and not exists (select 1 from {schema}.thread x where x.key = r.key)
                returning y.* into v_moved;
            t := case when found then v_moved else t end;
        end if;
        delete from {schema}.roster y
            where (y.key = t.key or y.digest = p_digest) and (y.key, y.digest, y.tenant_digest, y.tenant, y.id)
                is distinct from (t.key, p_digest, p_tenant_digest, p_tenant, p_thread);
        insert into {schema}.roster (key, digest, tenant_digest, tenant, id)
            values (t.key, p_digest, p_tenant_digest, p_tenant, p_thread)
            on conflict (digest) do nothing;
    end if;
    if t.row_checksum = {schema}.thread_row_checksum_1(t)
        and (t.tenant_digest, t.tenant, t.id) = (p_tenant_digest, p_tenant, p_thread)
    then
        return 'found';
    end if;
    if not p_repairs then
        return 'row_checksum';
    end if;
    update {schema}.thread y set
        tenant_digest = p_tenant_digest, tenant = p_tenant, id = p_thread,
        checkpoints = (select count(*) from {schema}.checkpoint c where c.thread = t.key),
        epoch = greatest(0, (select max(c.epoch) from {schema}.checkpoint c where c.thread = t.key)),
        seq = greatest(
            case when t.seq < 1::bigint << 53 then t.seq end, 0,
            (select max(c.seq) from {schema}.checkpoint c where c.thread = t.key)
        ),
        revision = greatest(
            case when t.revision < 1::bigint << 53 then t.revision end, 0,
            (select max(k.revision) from {schema}.chunk k where k.thread = t.key),
            (select max(e.fence) from {schema}.entry e where e.thread = t.key)
        )
        where y.key = t.key;
    return 'found';
end
$outlive$;

-- Return the id of the newest checkpoint of a namespace.
create function {schema}.newest_1(t {schema}.thread, p_space bytea) returns text language plpgsql stable as $outlive$
declare
    v_id text;
    v_row_checksum bigint;
    v_pointer bigint := t.root_head;
begin
    select c.id, c.row_checksum into v_id, v_row_checksum from {schema}.checkpoint c
        where c.thread = t.key and c.space = p_space
        order by c.epoch desc, c.seq desc, c.id desc limit 1;
    if p_space <> '' then
        select y.head into v_pointer from {schema}.space y where y.thread = t.key and y.space = p_space;
    end if;
    if v_row_checksum is distinct from v_pointer then
        raise exception 'its newest checkpoint is missing or is not the one that was stored last' using errcode = 'OL001';
    end if;
    return v_id;
end
$outlive$;

-- Count and add up the rows that a commit changes, called before and after it. Kinds: 0 checkpoints
-- by namespace, 1 chunks, 2 entries of run_sum, 3 entries of step_sum, 4 writes.
create function {schema}.portion_1(
    p_thread bigint, p_names bytea[], p_chunks bytea[], p_entries bytea[], p_pairs bytea[]
) returns table (kind bigint, space bytea, rows bigint, sum bigint, bytes bigint) language sql stable as $outlive$
    select 0::bigint, c.space, count(*), {schema}.xor_1(c.row_checksum), sum(octet_length(c.body))
        from {schema}.checkpoint c where c.thread = p_thread and c.name = any(p_names) group by c.space
    union all
    select 1, '', count(*), 0, coalesce(sum(octet_length(k.data)), 0)
        from {schema}.chunk k where k.thread = p_thread and k.name = any(p_chunks)
    union all
    select 2 + get_byte(e.name, 0), '', count(*), {schema}.xor_1(e.row_checksum # e.until), 0
        from {schema}.entry e where e.thread = p_thread and e.name = any(p_entries) group by get_byte(e.name, 0)
    union all
    select 4, '', count(*), 0, 0
        from {schema}.write w where w.thread = p_thread and w.pair = any(p_pairs) and w.checksum <> ''
$outlive$;

-- Count the writes of pairs again.
create function {schema}.tally_1(p_thread bigint, p_pairs bytea[]) returns void language sql as $outlive$
    delete from {schema}.write w where w.thread = p_thread and w.pair = any(p_pairs) and w.checksum = '';
    insert into {schema}.write
        select p_thread, w.pair, '', 0, count(*), {schema}.xor_1(w.row_checksum), 0, min(w.namespace), min(w.checkpoint),
            '', '', '', '', 0, '', ''
        from {schema}.write w where w.thread = p_thread and w.pair = any(p_pairs) group by w.pair;
$outlive$;

-- Set the newest checkpoints of namespaces whose counts have changed, and the checksum of the thread's row.
-- With p_recounts, add up the stored bytes again: a removed row may have been damaged, and its size
-- wrong.
create function {schema}.close_1(p_thread bigint, p_spaces bytea[], p_changes bigint[], p_recounts boolean) returns void
language plpgsql as $outlive$
declare
    v_row_checksum bigint;
begin
    for i in 1 .. coalesce(array_length(p_spaces, 1), 0) loop
        v_row_checksum := null;
        select c.row_checksum into v_row_checksum from {schema}.checkpoint c
            where c.thread = p_thread and c.space = p_spaces[i]
            order by c.epoch desc, c.seq desc, c.id desc limit 1;
        if p_spaces[i] = '' then
            update {schema}.thread y set root_head = v_row_checksum, root_checkpoints = y.root_checkpoints + p_changes[i]
                where y.key = p_thread;
        elsif v_row_checksum is null then
            delete from {schema}.space y where y.thread = p_thread and y.space = p_spaces[i];
        else
            insert into {schema}.space as y values (p_thread, p_spaces[i], p_changes[i], v_row_checksum)
                on conflict (thread, space) do update set
                    checkpoints = y.checkpoints + excluded.checkpoints, head = excluded.head;
        end if;
    end loop;
    if p_recounts then
        update {schema}.thread y set stored =
            (select coalesce(sum(octet_length(c.body)), 0) from {schema}.checkpoint c where c.thread = p_thread)
            + (select coalesce(sum(octet_length(k.data)), 0) from {schema}.chunk k where k.thread = p_thread)
            where y.key = p_thread;
    end if;
    update {schema}.thread y set row_checksum = {schema}.thread_row_checksum_1(y) where y.key = p_thread;
end
$outlive$;

-- Copy chunks to another thread; return its generation.
create function {schema}.share_1(
    p_wait text, p_source bytea, p_digest bytea, p_tenant_digest bytea, p_tenant text, p_thread text,
    p_token bigint, p_names bytea
) returns bigint language plpgsql as $outlive$
declare
    t {schema}.thread;
    v_state text;
    v_now bigint;
    v_bytes bigint;
begin
    perform set_config('lock_timeout', p_wait, true);
    v_state := {schema}.enter_1(p_digest, p_tenant_digest, p_tenant, p_thread, false);
    if v_state not in ('made', 'found') then
        raise exception 'its row is gone or does not match its checksum' using errcode = 'OL001';
    end if;
    v_now := {schema}.now_us_1();
    select y.* into strict t from {schema}.thread y where y.digest = p_digest;
    if v_state = 'made' then
        t.generation := p_token;
        t.created_at := v_now;
    end if;
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
    t.revision := t.revision + 1;
    t.updated_at := v_now;
    t.stored := t.stored + v_bytes;
    update {schema}.thread y set
        generation = t.generation, created_at = t.created_at, revision = t.revision, updated_at = t.updated_at,
        stored = t.stored, row_checksum = {schema}.thread_row_checksum_1(t)
        where y.key = t.key;
    return t.generation;
end
$outlive$;

-- Listing ----------------------------------------------------------------------------------------

-- Return the threads that changed last before a place, with all of the last second. By the index,
-- whatever the planner knows about the table: without statistics it would read and sort them all.
create function {schema}.newest_threads_1(
    p_tenant_digest bytea, p_tenant text, p_updated_at bigint, p_id text, p_limit bigint
) returns table (key bigint, updated_at bigint, id text)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $outlive$
begin
    return query select t.key, t.updated_at, t.id from {schema}.thread t
        where {LISTED} and t.tenant_digest = p_tenant_digest and t.tenant = p_tenant and t.recent <= p_updated_at / 1000000
            and (t.updated_at < p_updated_at or (t.updated_at = p_updated_at and t.id > p_id))
        order by t.recent desc fetch first (p_limit) rows with ties;
end
$outlive$;
