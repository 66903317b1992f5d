-- The writes of some checkpoints, or of all.
local wanted = cmsgpack.unpack(ARGV[1])
local raw, row = load_row()
if not row then return { raw or false } end
if not wanted then return { raw, redis.call('HGETALL', W) } end
local found = {}
for i = 1, #wanted do
  local names = redis.call('ZRANGEBYLEX', O, '[w' .. wanted[i] .. '\0', '(w' .. wanted[i] .. '\1')
  for j = 1, #names do
    local name = sub(names[j], 2)
    found[#found + 1] = name
    found[#found + 1] = redis.call('HGET', W, name)
  end
end
return { raw, found }
