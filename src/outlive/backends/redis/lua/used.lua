-- Return the buckets that have an index or a roster, on a single server. The keys are those of
-- bucket 0.
local used = {}
for bucket = 0, ARGV[1] - 1 do
  local keys = {}
  for i = 1, #KEYS do keys[i] = string.gsub(KEYS[i], '{0}', '{' .. bucket .. '}') end
  if redis.call('EXISTS', unpack(keys)) > 0 then used[#used + 1] = bucket end
end
return used
