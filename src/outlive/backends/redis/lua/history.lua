-- A page of records, newest first, of one namespace or of all. With `max_bytes` also their chunks,
-- each once: then the page ends before the record whose chunks would exceed that, but has at least
-- one record.
local namespace, before, limit, run, max_bytes, ttl_ms = unpack(cmsgpack.unpack(ARGV[1]), 1, 6)
local raw, row, damage = look()
if not row then return { damage and '!' .. damage or false } end
local low, high, start
if namespace then
  low, high, start = '[n' .. namespace .. '\0', '(n' .. namespace .. '\1', #namespace + 19
else
  low, high, start = '[a', '(b', 18
end
if before then
  local order = struct.pack('>I8I8', before[1], before[2]) .. before[3]
  high = '(' .. (namespace and 'n' .. namespace .. '\0' or 'a') .. order
end
if ttl_ms and ttl_ms > 0 then raw = refresh(raw, row, ttl_ms) end
local records, count = {}, 0
local names, seen, bytes, is_cut = {}, {}, 0, 0

-- Add the chunks of a record; tell whether there was room for them.
local function has_room(value)
  local new = {}
  for _, name in ipairs(split(value and (names_and_run(value)) or '')) do
    if not seen[name] then
      seen[name] = true
      new[#new + 1] = name
      bytes = bytes + redis.call('HSTRLEN', C, 'd' .. name)
    end
  end
  if count > 0 and bytes > max_bytes then return false end
  for i = 1, #new do names[#names + 1] = new[i] end
  return true
end

while count < limit and is_cut == 0 do
  local page = redis.call('ZREVRANGEBYLEX', O, high, low, 'LIMIT', 0, math.min(500, run and 500 or limit - count))
  if #page == 0 then break end
  local fields = {}
  for i = 1, #page do
    if namespace then
      fields[i] = namespace .. '\0' .. sub(page[i], start, -10)
    else
      local at = string.find(page[i], '\0', start, true)
      fields[i] = sub(page[i], at + 1, -10) .. '\0' .. sub(page[i], start, at - 1)
    end
  end
  local values = hmget(R, fields)
  for i = 1, #fields do
    if values[i] and sub(values[i], 29, 36) ~= sub(page[i], -8) then values[i] = '' end
    local fits = not run
    if run then
      local _, record_run = names_and_run(values[i] or '')
      fits = record_run == run or not is_sound(values[i] or '') -- the client reports a damaged one
    end
    if fits and count < limit and max_bytes and is_cut == 0 and not has_room(values[i]) then is_cut = 1 end
    if fits and count < limit and is_cut == 0 then
      records[#records + 1] = fields[i]
      records[#records + 1] = values[i]
      count = count + 1
    end
  end
  high = '(' .. page[#page]
end
local count_all = redis.call('HLEN', R)
if not max_bytes then return { raw, count_all, records } end
return { raw, count_all, records, names, (hmget(C, prefixed('d', names))), is_cut }
