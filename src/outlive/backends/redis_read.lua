-- One checkpoint with its chunks and its writes with theirs.
local namespace, id, moment, known, with_chunks, ttl_ms = unpack(cmsgpack.unpack(ARGV[1]), 1, 6)
local raw, row = load_row()
if not row then return { raw or false } end
if ttl_ms > 0 then keep_alive(ttl_ms) end

local function newest_at()
  local low, high = '[n' .. namespace .. '\0', '(n' .. namespace .. '\1'
  local start = #namespace + 19
  while true do
    local page = redis.call('ZREVRANGEBYLEX', O, high, low, 'LIMIT', 0, 100)
    if #page == 0 then return false end
    for i = 1, #page do
      local name = sub(page[i], start)
      local value = redis.call('HGET', R, namespace .. '\0' .. name)
      if not value or struct.unpack('>I8', value, 17) <= moment then return name end
    end
    high = '(' .. page[#page]
  end
end

if not id then
  if moment then id = newest_at() else id = head_of(namespace) end
  if not id then return { raw, false, false, redis.call('HLEN', R), redis.call('PTTL', M) } end
end
local field = namespace .. '\0' .. id
local value = redis.call('HGET', R, field)
if not value then return { raw, id, false, redis.call('HLEN', R), redis.call('PTTL', M) } end
local names = names_and_run(value)
local wanted = {}
if with_chunks and not (known == id and ARGV[2] == names) then wanted = split(names) end
local fields = redis.call('ZRANGEBYLEX', O, '[w' .. field .. '\0', '(w' .. field .. '\1')
for i = 1, #fields do fields[i] = sub(fields[i], 2) end
local writes = hmget(W, fields)
local extra = {}
if with_chunks then
  for i = 1, #writes do
    if writes[i] then
      local list = split(sub(writes[i], 61, 60 + struct.unpack('>I4', writes[i], 57)))
      for j = 1, #list do extra[#extra + 1] = list[j] end
    end
  end
end
return {
  raw, id, value, (hmget(C, prefixed('d', wanted))), fields, writes, extra, (hmget(C, prefixed('d', extra))),
}
