-- Note buckets that are in use, and the naming key if there is none; return the naming key of the
-- store. When the key had to be put back, note the time: buckets that were noted before may be
-- missing.
if ARGV[1] ~= '' and redis.call('HSETNX', KEYS[1], 'key', ARGV[1]) == 1 then
  redis.call('HSET', KEYS[1], 'restored', table.concat(redis.call('TIME'), ' '))
end
for i = 2, #ARGV do redis.call('HSETNX', KEYS[1], ARGV[i], '1') end
local fields, count = redis.call('HKEYS', KEYS[1]), 0
for i = 1, #fields do
  if string.find(fields[i], '^%d+$') then count = count + 1 end
end
redis.call('HSET', KEYS[1], 'buckets', count)
return redis.call('HGET', KEYS[1], 'key')
