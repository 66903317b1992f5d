-- One checkpoint with its chunks and its writes with theirs.
local namespace, id, moment, known, with_chunks, ttl_ms = unpack(cmsgpack.unpack(ARGV[1]), 1, 6)
local raw, row, wrong = look(not moment)
if not row then return { wrong and '!' .. wrong or false } end
if ttl_ms > 0 then raw = refresh(raw, row, ttl_ms) end

local function newest_at()
  local low, high = '[n' .. namespace .. '\0', '(n' .. namespace .. '\1'
  local start = #namespace + 19
  while true do
    local page = redis.call('ZREVRANGEBYLEX', O, high, low, 'LIMIT', 0, 100)
    if #page == 0 then return false end
    for i = 1, #page do
      local name = sub(page[i], start, -10)
      local value = redis.call('HGET', R, namespace .. '\0' .. name)
      if not value or #value < 24 or struct.unpack('>I8', value, 17) <= moment then return name end
    end
    high = '(' .. page[#page]
  end
end

local value
if id or moment then
  id = id or newest_at()
  value = id and record_at(namespace, id)
else
  local at
  id, value, at = head_record(namespace)
  if not is_newest(row, at) then return { '!' .. DISAGREE } end
end
if not value and not has_newest_record(row) then return { '!' .. DISAGREE } end
if not value then return { raw, id, false, redis.call('HLEN', R), redis.call('PTTL', M) } end
local names = names_and_run(value)
local wanted = {}
if with_chunks and not (known == id and ARGV[2] == names) then wanted = split(names) end
local fields, writes = {}, {}
if row.writes > 0 and not is_full(row) then return { '!' .. DISAGREE } end
if row.writes > 0 then fields, writes = writes_of(namespace .. '\0' .. id) end
local extra = {}
if with_chunks then
  for i = 1, #writes do
    if writes[i] and #writes[i] > 60 then
      local list = split(sub(writes[i], 61, 60 + struct.unpack('>I4', writes[i], 57)))
      for j = 1, #list do extra[#extra + 1] = list[j] end
    end
  end
end
return {
  raw, id, value, (hmget(C, prefixed('d', wanted))), fields, writes, extra, (hmget(C, prefixed('d', extra))),
}
