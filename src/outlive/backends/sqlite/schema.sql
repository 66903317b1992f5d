-- One file per store. Integer keys and rowid tables: rows are appended to dense pages.
-- `id`, `namespace` and `parent` are escaped (backslash, NUL and lone surrogates), nothing else is.
-- `created_at` and `updated_at` are microseconds since 1970, UTC. `metadata` and `metadata_json` are
-- for people who look into the file; outlive reads `body` and `metadata`. `chunks` is a msgpack list of
-- keys of the table `chunk`, `names` a checksum over the names of those chunks.
create table meta(name text primary key, value blob not null, checksum blob not null) without rowid;

-- Keys are never used again: rows of a thread whose own row is lost go to no other thread.
create table thread(
  key integer primary key autoincrement, digest blob not null unique, tenant text not null, id text, listed integer not null,
  generation integer not null, revision integer not null, epoch integer not null, seq integer not null,
  checkpoints integer not null, entries integer not null, stored integer not null, created_at integer not null, updated_at integer not null,
  metadata_version integer not null, checksum blob not null, metadata blob, metadata_checksum blob, metadata_json text,
  recent integer not null default 0);
create unique index thread_id on thread(tenant, id) where listed;
-- `recent` is `updated_at` in seconds: of many saves in a second, one writes this index.
create index thread_recent on thread(tenant, recent) where listed;

-- The listed threads again: this reveals a lost row of `thread`.
create table roster(tenant text not null, id text not null, primary key(tenant, id)) without rowid;

-- The newest checkpoint of a namespace, and the number of its checkpoints: this reveals a lost row.
-- `record` is the checksum of that checkpoint. Every commit of the thread writes the row of the root
-- namespace with its revision: this row and that of `thread` reveal loss or age of each other.
create table head(
  digest blob not null, namespace text not null, thread integer not null, revision integer not null, epoch integer not null,
  seq integer not null, id text, checkpoints integer not null, record blob, checksum blob not null,
  primary key(digest, namespace)) without rowid;

create table checkpoint(
  key integer primary key, thread integer not null, namespace text not null, id text not null, parent text, run text,
  epoch integer not null, seq integer not null, step integer, source text not null, created_at integer not null,
  size integer not null, added integer not null, format integer not null, version integer not null, metadata text,
  chunks blob not null, names blob not null, body blob not null, checksum blob not null);
create unique index checkpoint_id on checkpoint(thread, id, namespace);
create index checkpoint_order on checkpoint(thread, namespace, epoch, seq);

-- The checksum of every checkpoint that was replaced: an older copy of its row is noticed.
create table checkpoint_version(
  thread integer not null, namespace text not null, id text not null, checksum blob not null,
  primary key(thread, namespace, id)) without rowid;

create table chunk(
  key integer primary key, thread integer not null, name blob not null, revision integer not null,
  crc integer not null, data blob not null);
create unique index chunk_name on chunk(thread, name);

create table write(
  key integer primary key, thread integer not null, namespace text not null, checkpoint text not null,
  task text not null, idx integer not null, channel text not null, path text not null,
  epoch integer not null, fence integer not null, revision integer not null,
  chunks blob not null, names blob not null, body blob not null, checksum blob not null);
create unique index write_key on write(thread, namespace, checkpoint, task, idx);

-- How many writes a checkpoint has, and the exclusive or of their checksums.
create table tally(
  thread integer not null, namespace text not null, checkpoint text not null, writes integer not null, sum blob not null,
  checksum blob not null,
  primary key(thread, namespace, checkpoint)) without rowid;

create table entry(
  thread integer not null, kind text not null, key text not null, status text not null, epoch integer not null,
  fence integer not null, revision integer not null, until integer not null, clock text not null, body blob not null,
  checksum blob not null,
  primary key(thread, kind, key)) without rowid;
create index entry_status on entry(kind, status, key);
-- In the order of keys over all threads. SQLite uses this index only for queries that have this very
-- condition.
create index entry_key on entry(kind, key) where kind in ('run', 'ticket', 'timer');

-- The status and checksum of every entry: this reveals a row of `entry` that is lost or older.
create table entry_version(
  thread integer not null, kind text not null, key text not null, status text not null, checksum blob not null,
  primary key(thread, kind, key)) without rowid;
create index entry_version_status on entry_version(kind, status, key);
create index entry_version_key on entry_version(kind, key) where kind in ('run', 'ticket', 'timer');
