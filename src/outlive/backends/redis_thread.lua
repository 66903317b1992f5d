-- One thread, as all scripts see it. Keys: meta, records, order, chunks, writes, entries, and of the bucket: the
-- index of threads, the index of entries; and perhaps, of the store, its identity. Numbers in a row are below 2^53; a generation is 63 bits, so it is text.
local M, R, O, C, W, E, THREADS, ENTRIES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local IDENTITY = KEYS[9]
local WHO = M and string.sub(M, -34, -3) -- the digest, in hex
local NONE = 4294967295 -- in place of the length of a text that is not there
local sub, format = string.sub, string.format

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function int(number) return format('%.0f', number) end
local function hex(number) return format('%016x', number) end
local function sum(text) return sub(redis.sha1hex(text), 1, 8) end

-- The row of the thread: twelve numbers, the tokens of its last commits, newest first, and a checksum.
local ROW = '^' .. string.rep('(%d+) ', 12) .. '(%x*)$'

local function load_row()
  local raw = redis.call('HGET', M, 'row')
  if not raw then return nil, nil end
  local text = sub(raw, 1, -10)
  local g, v, e, s, c, u, n, w, k, b, x, i, t = string.match(text, ROW)
  if not g or sum(WHO .. text) ~= sub(raw, -8) then return raw, false end
  return raw, {
    generation = g, revision = tonumber(v), epoch = tonumber(e), seq = tonumber(s), created = c, updated = u,
    checkpoints = tonumber(n), writes = tonumber(w), entries = tonumber(k), stored = tonumber(b),
    info_version = tonumber(x), info = tonumber(i), tokens = t,
  }
end

local function row_text(row)
  -- Counts are never below 0, also when a damaged value told a wrong size.
  local function count(number) return math.max(0, number) end
  local text = format('%s %.0f %.0f %.0f %s %s %.0f %.0f %.0f %.0f %.0f %.0f %s', row.generation, row.revision, row.epoch,
    row.seq, row.created, row.updated, count(row.checkpoints), count(row.writes), count(row.entries), count(row.stored),
    row.info_version, row.info, row.tokens)
  return text .. ' ' .. sum(WHO .. text)
end

-- A commit says its own token, then those of commits that were given up: these do nothing if they come after it.
local function is_known(row, tokens) return row and string.find(row.tokens, sub(tokens, 1, 16), 1, true) end
local function remember(row, tokens) row.tokens = sub(tokens .. row.tokens, 1, 128) end

local function is_listed(row) return row.checkpoints > 0 or row.writes > 0 or row.info > 0 end

-- A thread begins only in the store that its writer knows, whose naming key is the last argument, and its bucket is noted
-- with it. (A Cluster has the identity on another node: there the client does that.)
local function is_elsewhere()
  local held = IDENTITY and redis.call('HGET', IDENTITY, 'key')
  return held and held ~= ARGV[#ARGV]
end

local function register()
  if IDENTITY then redis.call('HSET', IDENTITY, 'key', ARGV[#ARGV], string.match(M, '{(%d+)}'), '1') end
end

-- Commands take some thousand arguments at most: pages.
local function hmget(key, fields)
  local found, count = {}, 0
  for start = 1, #fields, 1000 do
    local page = redis.call('HMGET', key, unpack(fields, start, math.min(start + 999, #fields)))
    for i = 1, #page do found[count + i] = page[i] end
    count = count + #page
  end
  return found, count
end

local function prefixed(letter, names)
  local fields = {}
  for i = 1, #names do fields[i] = letter .. names[i] end
  return fields
end

-- The order: 'n' namespace NUL epoch seq id, 'a' epoch seq id NUL namespace, 'w' write, 'e' entry.
local function head_of(namespace)
  local start = 'n' .. namespace .. '\0'
  local found = redis.call('ZREVRANGEBYLEX', O, '(n' .. namespace .. '\1', '[' .. start, 'LIMIT', 0, 1)[1]
  return found and sub(found, #start + 17)
end

local function members(namespace, id, order)
  return 'n' .. namespace .. '\0' .. order .. id, 'a' .. order .. id .. '\0' .. namespace
end

-- The stamp of a chunk: the revision that stored it last, the checksum of its bytes, and one of the stamp.
local function stamp(name, revision, crc)
  local text = revision .. ' ' .. crc
  return text .. ' ' .. sum(name .. text)
end

local function store_chunk(name, revision, crc, data)
  if redis.call('HSETNX', C, 'd' .. name, data) == 1 then
    redis.call('HSET', C, 's' .. name, stamp(name, revision, crc))
    return #data
  end
  local held = string.match(redis.call('HGET', C, 's' .. name) or '', '^%d+ (%x+) ')
  redis.call('HSET', C, 's' .. name, stamp(name, revision, held or crc))
  return 0
end

-- Names of chunks, each behind its length. (cmsgpack knows no binary strings.)
local function split(names)
  local list, at = {}, 1
  while at <= #names do
    local length = string.byte(names, at)
    list[#list + 1] = sub(names, at + 1, at + length)
    at = at + length + 1
  end
  return list
end

-- A record: epoch, seq, created_at, length of the parent, checksum, parent; then what the client packed:
-- lengths of names, body, run; names, run, rest.
local function lengths(value)
  local parent = struct.unpack('>I4', value, 25)
  if parent == NONE then parent = 0 end
  local names, body, run = struct.unpack('>I4I4I4', value, 37 + parent)
  return 49 + parent, names, body, run
end

local function body_bytes(value)
  local is_whole, _, _, body = pcall(lengths, value)
  return is_whole and body <= #value and body or 0 -- a damaged record must not stop a script that has begun to write
end

local function names_and_run(value)
  local is_whole, at, names, _, run = pcall(lengths, value)
  if not is_whole then return '', false end -- the client finds out why
  return sub(value, at, at + names - 1), run ~= NONE and sub(value, at + names, at + names + run - 1)
end

-- An entry: rank (epoch, fence, revision), until, checksum, lengths of status and clock, status, clock, payload.
local function status_clock(value)
  local status, clock = struct.unpack('>I4I4', value, 73)
  return sub(value, 81, 80 + status), sub(value, 81 + status, 80 + status + clock), sub(value, 81 + status + clock)
end

local function entry_value(rank, lapses, status, clock, payload)
  local head = rank .. lapses
  local tail = struct.pack('>I4I4', #status, #clock) .. status .. clock
  return head .. sum(head .. tail .. sub(payload, -8)) .. tail .. payload
end

-- Lines of the index of entries: 'k' tenant, kind, key, digest; then when the lease ends, by which clock, and the status. With a
-- status there is a second one, 's' tenant, kind, status, key, digest, end, clock: those that run are few among those that ended.
local function lines(tenant, field, ending)
  local line = 'k' .. tenant .. '\0' .. field .. '\0' .. WHO .. ending
  local status = sub(ending, 18)
  if status == '' then return line, line end
  local at = string.find(field, '\0', 1, true) or #field -- a damaged name has none
  local by = 's' .. tenant .. '\0' .. sub(field, 1, at) .. status .. '\0' .. sub(field, at + 1) .. '\0' .. WHO
  return line, by .. sub(ending, 1, 17)
end

local function ending(value)
  local status, clock = status_clock(value)
  return sub(value, 49, 64) .. (clock == 'redis' and '1' or '0') .. status
end

local function index_entry(tenant, field, value)
  local one, two = lines(tenant, field, ending(value))
  redis.call('ZADD', ENTRIES, 0, one, 0, two)
end

local function is_asked(value, statuses, lapsed, at)
  local status, clock = status_clock(value)
  local fits = not statuses
  for i = 1, statuses and #statuses or 0 do fits = fits or statuses[i] == status end
  return fits and (lapsed == 'any' or lapsed == (clock ~= 'redis' or sub(value, 49, 64) <= at))
end

local function forget_entry(tenant, field)
  local start = 'k' .. tenant .. '\0' .. field .. '\0' .. WHO
  local found = redis.call('ZRANGEBYLEX', ENTRIES, '[' .. start, '(' .. start .. '\127')
  for i = 1, #found do
    local one, two = lines(tenant, field, sub(found[i], #start + 1))
    redis.call('ZREM', ENTRIES, one, two)
  end
end

-- All keys of a thread end at one moment. A handle without a TTL leaves the one that the thread has.
local function keep_alive(ttl_ms)
  local ends = math.floor(now() / 1000) + ttl_ms
  if ttl_ms == 0 then
    local left = redis.call('PTTL', M)
    if left <= 0 then return end
    ends = redis.pcall('PEXPIRETIME', M) -- since Redis 7
    if type(ends) ~= 'number' then ends = math.floor(now() / 1000) + left end
  end
  for i = 1, 6 do
    if ttl_ms > 0 or redis.call('PTTL', KEYS[i]) == -1 then redis.call('PEXPIREAT', KEYS[i], int(ends)) end
  end
end

-- A thread that a TTL has taken leaves no counter behind: where there is one, revisions, and so fences, start with the time.
local function first_revision(ttl_ms, at) return ttl_ms > 0 and at or 0 end
