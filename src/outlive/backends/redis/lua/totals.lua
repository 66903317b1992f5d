-- Add up the listed threads of a tenant in some buckets, from their rows. The keys are the rosters.
local threads, checkpoints, stored = 0, 0, 0
for i = 1, #KEYS do
  local base, digests = string.sub(KEYS[i], 1, -7), redis.call('HKEYS', KEYS[i])
  for j = 1, #digests do
    if #digests[j] == 32 then
      local row, tenant = unpack(redis.call('HMGET', base .. digests[j] .. ':m', 'row', 'tenant'), 1, 2)
      local n, w, b, info = string.match(row or '', '^%d+ %d+ %d+ %d+ %d+ %d+ (%d+) (%d+) %d+ (%d+) %d+ (%d+) ')
      if tenant == ARGV[1] and n and (n ~= '0' or w ~= '0' or info ~= '0') then
        threads, checkpoints, stored = threads + 1, checkpoints + tonumber(n), stored + tonumber(b)
      end
    end
  end
end
return { threads, checkpoints, stored }
