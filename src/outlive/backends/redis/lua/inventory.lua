-- The names, sizes and stamps of all chunks.
local raw, row, damage = look()
if not row then return { damage and '!' .. damage or false } end
local keys, names = redis.call('HKEYS', C), {}
for i = 1, #keys do
  if sub(keys[i], 1, 1) == 'd' then names[#names + 1] = sub(keys[i], 2) end
end
local sizes = {}
for i = 1, #names do sizes[i] = redis.call('HSTRLEN', C, 'd' .. names[i]) end
return { raw, names, sizes, (hmget(C, prefixed('s', names))) }
