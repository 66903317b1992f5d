-- A page of records, newest first: of one namespace or of all.
local namespace, before, limit, run = unpack(cmsgpack.unpack(ARGV[1]), 1, 4)
local raw, row = load_row()
if not row then return { raw or false } end
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
local found, count = { raw, redis.call('HLEN', R) }, 0
while count < limit do
  local page = redis.call('ZREVRANGEBYLEX', O, high, low, 'LIMIT', 0, math.min(500, run and 500 or limit - count))
  if #page == 0 then break end
  local fields = {}
  for i = 1, #page do
    if namespace then
      fields[i] = namespace .. '\0' .. sub(page[i], start)
    else
      local at = string.find(page[i], '\0', start, true)
      fields[i] = sub(page[i], at + 1) .. '\0' .. sub(page[i], start, at - 1)
    end
  end
  local values = hmget(R, fields)
  for i = 1, #fields do
    local fits = not run
    if run and values[i] then
      local _, its = names_and_run(values[i])
      fits = its == run
    end
    if fits and count < limit then
      found[#found + 1] = fields[i]
      found[#found + 1] = values[i]
      count = count + 1
    end
  end
  high = '(' .. page[#page]
end
return found
