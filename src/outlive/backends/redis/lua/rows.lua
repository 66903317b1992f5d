-- Add up the listed threads of a bucket from their rows, for each tenant: threads, checkpoints, bytes.
-- Return also whether one of its threads may expire. The rows are in the slot of the roster.
local function add_up(roster)
  local base, digests, totals, may_expire = string.sub(roster, 1, -7), redis.call('HKEYS', roster), {}, false
  for i = 1, #digests do
    if #digests[i] == 32 then
      local row, tenant = unpack(redis.call('HMGET', base .. digests[i] .. ':m', 'row', 'tenant'), 1, 2)
      local n, w, b, metadata, ends, listing = string.match(row or '', '^%d+ %d+ %d+ %d+ %d+ %d+ (%d+) (%d+) %d+ (%d+) %d+ (%d+) (%d+) (%d+) ')
      may_expire = may_expire or ends == '1'
      if tenant and n and (n ~= '0' or w ~= '0' or metadata ~= '0' or listing ~= '0') then
        local total = totals[tenant] or { 0, 0, 0 }
        totals[tenant] = { total[1] + 1, total[2] + tonumber(n), total[3] + tonumber(b) }
      end
    end
  end
  return totals, may_expire
end
