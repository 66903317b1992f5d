-- The writes of some checkpoints, or of all.
local wanted = cmsgpack.unpack(ARGV[1])
local raw, row, damage = look()
if not row then return { damage and '!' .. damage or false } end
local flat = {}
local function add(fields, values)
  for i = 1, #fields do
    flat[#flat + 1] = fields[i]
    flat[#flat + 1] = values[i]
  end
end
if not wanted then
  add(in_order(W, '[w', '(x', 49))
elseif row.writes > 0 then
  for i = 1, #wanted do add(writes_of(wanted[i])) end
end
return { raw, flat }
