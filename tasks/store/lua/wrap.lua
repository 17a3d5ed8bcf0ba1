-- What stands around each script: its arguments by name, the time, the memory of what it answered.

local function register(name, script, flags)
  local function run(_, args)
    local A, rest = {}, nil
    for i = 3, #args, 2 do
      if args[i] == '' then
        rest = i + 1
        break
      end
      A[args[i]] = args[i + 1]
    end
    NOW = args[2] ~= '' and tonumber(args[2]) or clock()
    if args[1] == '' then return script(A, NOW, args, rest) end
    local op = K('op', args[1])
    local said = redis.call('GET', op)
    if said then return cmsgpack.unpack(said) end
    local reply = script(A, NOW, args, rest)
    redis.call('SET', op, cmsgpack.pack(reply), 'PX', OP_KEEP_MS)
    return reply
  end
  redis.register_function({function_name = LIBRARY .. '_' .. name, callback = run, flags = flags})
end
