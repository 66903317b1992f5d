-- One thread, as all scripts see it. Keys: meta, records, order, chunks, writes, entries; of its
-- bucket: the index of threads, the index of entries, the roster; the index of threads by the time
-- of their last change, which is one for the whole store on a single server; and there the identity
-- of the store. Numbers in a row are below 2^53; a generation has 63 bits, so it is text.
--
-- The keys of a thread check each other. The order has the checksum of every record, write and
-- entry, and the revision of the row. The roster says which threads have a row. So a script notices
-- a key that is gone, or that is an older copy of itself. The indexes are derived: the roster
-- counts their lines, and a client rebuilds an incomplete one.
local M, R, O, C, W, E, THREADS, ENTRIES, ROSTER, RECENT, IDENTITY = unpack(KEYS, 1, 11)
local DIGEST = M and string.sub(M, -34, -3) -- the digest, in hex
local NONE = 4294967295 -- instead of the length of a text that is nil
local LAST = '\255' -- the last member of an order; its score is the revision
local TORN = '?' -- the roster of the bucket or the identity is gone
local UNSURE = 'the server lost keys, and nothing tells whether it had this thread; delete the thread to begin it again'
local LISTING = { LISTING_KINDS } -- a thread that has an entry of such a kind is listed
local sub, format = string.sub, string.format

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function int(number) return format('%.0f', number) end
local function hex(number) return format('%016x', number) end
local function sum(text) return sub(redis.sha1hex(text), 1, 8) end

-- Return the state of a thread: 'l' when it is listed, 'e' when it has entries, both, or nothing.
local function state_of(row)
  local is_listed = row.checkpoints > 0 or row.writes > 0 or row.metadata > 0 or row.listing > 0
  return (is_listed and 'l' or '') .. (row.entries > 0 and 'e' or '')
end

-- The row of the thread: fourteen numbers, the tokens of its last commits, newest first, and a
-- checksum. `listing` is how many of its entries list it. The indexes and totals still have
-- `last_updated`, `last_checkpoints`, `last_stored` and `last_ends`: see `note_change`.
local ROW = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%x*)$'

local function parse_row(raw)
  local text = sub(raw, 1, -10)
  local g, v, e, s, c, u, n, w, k, b, x, i, z, l, t = string.match(text, ROW)
  if not g or sum(DIGEST .. text) ~= sub(raw, -8) then return nil end
  return {
    generation = g, revision = tonumber(v), epoch = tonumber(e), seq = tonumber(s), created = c, updated = u,
    checkpoints = tonumber(n), writes = tonumber(w), entries = tonumber(k), stored = tonumber(b),
    metadata_version = tonumber(x), metadata = tonumber(i), ends = tonumber(z), listing = tonumber(l), tokens = t,
    last_updated = u, last_checkpoints = tonumber(n), last_stored = tonumber(b), last_ends = tonumber(z),
  }
end

local function row_text(row)
  local max = math.max -- counts are never below 0, even when a damaged value has a wrong size
  local text = format('%s %.0f %.0f %.0f %s %s %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %s', row.generation, row.revision, row.epoch,
    row.seq, row.created, row.updated, max(0, row.checkpoints), max(0, row.writes), max(0, row.entries), max(0, row.stored),
    row.metadata_version, row.metadata, row.ends, max(0, row.listing), row.tokens)
  return text .. ' ' .. sum(DIGEST .. text)
end

-- Return why a thread without a row is damaged, or nil and what the roster has of an expired
-- thread. Nothing: there never was one. The roster has the end of a thread, 0 for never, and its
-- state: that is all an expired thread leaves.
local function why_missing()
  local roster_state, count, lost = unpack(redis.call('HMGET', ROSTER, DIGEST, 'threads', 'lost'), 1, 3)
  if count and not roster_state and not lost then return nil end -- the usual case
  if redis.call('EXISTS', R, O, C, W, E) > 0 then return 'its row is gone; delete the thread to begin it again' end
  if roster_state then
    local ends = tonumber(string.match(roster_state, '^%d+')) or 0
    -- 10 s early: the clocks of a primary and its successor differ.
    if ends > 0 and ends <= now() / 1000 + 10000 then return nil, roster_state end
    return 'all keys of it are gone; delete the thread to begin it again'
  end
  if lost then return UNSURE end
  if redis.call('EXISTS', THREADS, ENTRIES) > 0 then return TORN end
  if not IDENTITY then return nil end
  local key, noted = unpack(redis.call('HMGET', IDENTITY, 'key', string.match(M, '{(%d+)}')), 1, 2)
  if noted or not key then return TORN end -- without the identity the client looks for what is left
end

-- Tell whether the order has as many members as it should have.
local function is_full(row)
  local count = state_of(row) == '' and 0 or 2 * row.checkpoints + row.writes + row.entries + 1
  return redis.call('ZCARD', O) == count
end

-- Return the row as text and as a table, or why it cannot be used, and what the roster has of an
-- expired thread. A script that needs only the newest checkpoint need not count the members: see
-- `is_newest`.
local DISAGREE = 'its row and its order do not agree'
local function look(uncounted)
  local raw = redis.call('HGET', M, 'row')
  if not raw then return nil, nil, why_missing() end
  local row = parse_row(raw)
  if not row then return raw, nil, 'its row is damaged' end
  if state_of(row) ~= '' then
    local revision = redis.call('ZSCORE', O, LAST)
    if not revision or tonumber(revision) ~= row.revision or not (uncounted or is_full(row)) then return raw, nil, DISAGREE end
  end
  return raw, row
end

-- A command takes some thousand arguments at most, so long lists go in pages.
local function hmget(key, fields)
  local values, count = {}, 0
  for start = 1, #fields, 1000 do
    local page = redis.call('HMGET', key, unpack(fields, start, math.min(start + 999, #fields)))
    for i = 1, #page do values[count + i] = page[i] end
    count = count + #page
  end
  return values, count
end

local function in_pages(command, key, list)
  local done = 0
  for start = 1, #list, 1000 do
    done = done + redis.call(command, key, unpack(list, start, math.min(start + 999, #list)))
  end
  return done
end

local function prefixed(letter, names)
  local fields = {}
  for i = 1, #names do fields[i] = letter .. names[i] end
  return fields
end

-- The members of the order: 'n' namespace NUL epoch seq id, 'a' epoch seq id NUL namespace, 'w'
-- write, 'e' entry, each followed by NUL and the checksum of its value. And LAST.
local function members(namespace, id, value)
  local order, check = sub(value, 1, 16), '\0' .. sub(value, 29, 36)
  return 'n' .. namespace .. '\0' .. order .. id .. check, 'a' .. order .. id .. '\0' .. namespace .. check
end

local function member(letter, field, value)
  local at = letter == 'w' and 49 or 65
  return letter .. field .. '\0' .. sub(value, at, at + 7)
end

-- Return a value if the order has its checksum; otherwise an empty one, which the client reports as
-- damage.
local function checked(value, member)
  return value and (redis.call('ZSCORE', O, member) and value or '')
end

local function record_at(namespace, id)
  local value = redis.call('HGET', R, namespace .. '\0' .. id)
  return value and checked(value, (members(namespace, id, value)))
end

-- Return the id of the newest checkpoint, its checksum, and its position.
local function head_of(namespace)
  local start = 'n' .. namespace .. '\0'
  local last = redis.call('ZREVRANGEBYLEX', O, '(n' .. namespace .. '\1', '[' .. start, 'LIMIT', 0, 1)[1]
  if last then return sub(last, #start + 17, -10), sub(last, -8), sub(last, #start + 1, #start + 16) end
end

-- Tell whether a head is the newest, of all that was saved or because no member is missing.
local function is_newest(row, position)
  return position == struct.pack('>I8I8', row.epoch, row.seq) or row.seq == 0 or is_full(row)
end

local function head_record(namespace)
  local id, check, at = head_of(namespace)
  local value = id and redis.call('HGET', R, namespace .. '\0' .. id)
  return id or false, value and (sub(value, 29, 36) == check and value or '') or false, at
end

-- Tell whether the records are those that the order names. Where they are of another key or an
-- older copy, the newest is missing.
local function has_newest_record(row)
  local last = redis.call('ZREVRANGEBYLEX', O, '(b', '[a', 'LIMIT', 0, 1)[1]
  local at = last and string.find(last, '\0', 18, true)
  local value = at and record_at(sub(last, at + 1, -10), sub(last, 18, at - 1))
  return row.checkpoints == 0 or value and value ~= ''
end

-- Return fields and values that the order names, from low to high.
local function in_order(key, low, high, at)
  local fields = redis.call('ZRANGEBYLEX', O, low, high)
  local checks = {}
  for i = 1, #fields do fields[i], checks[i] = sub(fields[i], 2, -10), sub(fields[i], -8) end
  local values = hmget(key, fields)
  for i = 1, #fields do
    if values[i] and sub(values[i], at, at + 7) ~= checks[i] then values[i] = '' end
  end
  return fields, values
end

local function writes_of(field) return in_order(W, '[w' .. field .. '\0', '(w' .. field .. '\1', 49) end

local changes = {} -- of the order: member, and whether it is to be there

local function write_order(row)
  if state_of(row) == '' then return redis.call('DEL', O) end
  local gone, put = {}, { row.revision, LAST }
  for member, stays in pairs(changes) do
    if stays then put[#put + 1] = 0 end
    local list = stays and put or gone
    list[#list + 1] = member
  end
  in_pages('ZREM', O, gone)
  in_pages('ZADD', O, put)
end

-- Store the chunks among the arguments, from the third on; return the bytes that were added. An
-- existing chunk gets a new stamp: the revision that stored it last, the checksum of its bytes, and
-- a checksum of the stamp.
local function store_chunks(count, revision)
  local stamps, added = {}, 0
  for i = 3, 3 * count, 3 do
    local name, crc, data = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    if redis.call('HSETNX', C, 'd' .. name, data) == 1 then
      added = added + #data
    else
      crc = string.match(redis.call('HGET', C, 's' .. name) or '', '^%d+ (%x+) ') or crc
    end
    stamps[#stamps + 1] = 's' .. name
    local text = revision .. ' ' .. crc
    stamps[#stamps + 1] = text .. ' ' .. sum(name .. text)
  end
  in_pages('HSET', C, stamps)
  return added
end

-- Unpack names of chunks, each after its length. (cmsgpack knows no binary strings.)
local function split(names)
  local list, at = {}, 1
  while at <= #names do
    local length = string.byte(names, at)
    list[#list + 1] = sub(names, at + 1, at + length)
    at = at + length + 1
  end
  return list
end

-- A record: epoch, seq, created_at, length of the parent, checksum, parent; then what the client
-- packed: lengths of names, body, run; names, run, rest.
local function lengths(value)
  local parent = struct.unpack('>I4', value, 25)
  if parent == NONE then parent = 0 end
  local names, body, run = struct.unpack('>I4I4I4', value, 37 + parent)
  return 49 + parent, names, body, run
end

local function body_bytes(value)
  local is_whole, _, _, body = pcall(lengths, value)
  -- A damaged record must not stop a script that writes.
  return is_whole and body <= #value and body or 0
end

local function names_and_run(value)
  local is_whole, at, names, _, run = pcall(lengths, value)
  if not is_whole then return '', false end -- the client finds out why
  return sub(value, at, at + names - 1), run ~= NONE and sub(value, at + names, at + names + run - 1)
end

-- Tell whether a record matches the checksum that was made here.
local function is_sound(value)
  local is_whole, at = pcall(lengths, value)
  return is_whole and sum(sub(value, 1, 28) .. sub(value, 37, at - 13) .. sub(value, -8)) == sub(value, 29, 36)
end

-- An entry: rank (epoch, fence, revision), until, checksum, lengths of status and clock, status,
-- clock, payload.
local function status_clock(value)
  local status, clock = struct.unpack('>I4I4', value, 73)
  return sub(value, 81, 80 + status), sub(value, 81 + status, 80 + status + clock), sub(value, 81 + status + clock)
end

-- Tell whether an end by this clock counts: the server times leases, and wall time is its time too.
local function is_timed(clock) return clock == 'redis' or clock == 'wall' end

local function is_asked(value, statuses, lapsed, at)
  local is_whole, status, clock = pcall(status_clock, value)
  if not is_whole then return true end -- the client finds out why
  local fits = not statuses
  for i = 1, statuses and #statuses or 0 do fits = fits or statuses[i] == status end
  return fits and (lapsed == 'any' or lapsed == (not is_timed(clock) or sub(value, 49, 64) <= at))
end

-- Let all keys of a thread expire at one moment. Without a TTL of its own, the caller keeps that of
-- the thread.
local function keep_alive(row, ttl_ms)
  if row.ends == 0 then return '0' end
  local ends = math.floor(now() / 1000) + ttl_ms
  if ttl_ms == 0 then
    local left = redis.call('PTTL', M)
    if left <= 0 then return '0' end
    ends = redis.pcall('PEXPIRETIME', M) -- since Redis 7
    if type(ends) ~= 'number' then ends = math.floor(now() / 1000) + left end
  end
  for i = 1, 6 do
    if ttl_ms > 0 or redis.call('PTTL', KEYS[i]) == -1 then redis.call('PEXPIREAT', KEYS[i], int(ends)) end
  end
  return int(ends)
end

-- Note in the roster when a thread expires (0: never), its state, and if it expires the time of its
-- last change: that names its line in the index by time. The totals of a bucket do not learn that a
-- thread expired, so they do not count once a thread of it may.
local function enroll(row, state, ends)
  redis.pcall('HSET', ROSTER, DIGEST, ends .. state .. (ends ~= '0' and '@' .. row.updated or ''))
  if ends ~= '0' then redis.pcall('HDEL', ROSTER, 'totals') end
end

-- Count an entry that comes (1) or goes (-1).
local function count_entry(row, field, change)
  row.entries = row.entries + change
  if LISTING[string.match(field, '^[^%z]*')] then row.listing = row.listing + change end
end

-- Tell those who watch a tenant that there is work. A user may lack the right to the channel.
local function ring(tenant) redis.pcall('PUBLISH', string.match(M, '^(.-){') .. 'wake:' .. tenant, '') end

-- A read extends the TTL as a commit does.
local function refresh(raw, row, ttl_ms)
  if row.ends == 0 then
    row.ends = 1
    raw = row_text(row)
    redis.call('HSET', M, 'row', raw)
  end
  local ends, state = keep_alive(row, ttl_ms), state_of(row)
  if state ~= '' then enroll(row, state, ends) end
  return raw
end
