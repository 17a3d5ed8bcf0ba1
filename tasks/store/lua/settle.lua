-- Close the ledger line of a call and, where there is an answer, store the step: one script, so that
-- no answer is paid and lost between the two. A repeat by nature: a line is closed once; only
-- `unknown` (a take-over or an end closed it for us) is booked anew by whoever knows better.
-- A: job, run, call, outcome, status, input_tokens, output_tokens, request_id, message,
--    first_ms (to the answer's first byte) ('' none each),
--    at_door (1: refused before anything ran), step, hash, value ('' no answer), done, total,
--    note ('' no progress to tell), plan ('' none), closed_ms (the model asked for no call for so long, '' it did not)
-- returns: ok, lost (booked, but the run is over), taken (booked, but an earlier answer stands) or gone
--    (there is nothing to book it on)
local job = load(A.job)
local ledger, field = K('ledger', A.job), 'c:' .. A.call
local written = job and redis.call('HGET', ledger, field)
if not written then return {'gone'} end
local word = holds(job, A) and 'ok' or 'lost'
local function told()
  local kept = A.value ~= '' and redis.call('HGET', K('steps', job.id), A.step)
  if word == 'ok' and kept and kept ~= A.hash .. '\n' .. A.value then return {'taken'} end
  return {word}
end
local line = cjson.decode(written)
if line.outcome ~= 'open' and (line.outcome ~= 'unknown' or A.outcome == 'unknown') then return told() end

if A.closed_ms ~= '' then
  close_lane(line.model, now + math.min(A.closed_ms, LONGEST_PAUSE_MS), now)
end
give_up_place(line.model, place_of(job, line.run, A.call), now)
redis.call('HINCRBY', job.key, line.outcome, -1)
redis.call('HINCRBY', job.key, A.outcome, 1)
redis.call('HINCRBY', job.key, 'input_tokens', A.input_tokens)
redis.call('HINCRBY', job.key, 'output_tokens', A.output_tokens)
line.outcome, line.ended = A.outcome, math.floor(now)
line.status, line.request_id, line.message = tonumber(A.status), A.request_id, A.message
line.input_tokens, line.output_tokens = tonumber(A.input_tokens), tonumber(A.output_tokens)
redis.call('HSET', ledger, field, cjson.encode(line))
count(1, 'calls\n' .. line.model .. '\n' .. A.outcome)
count(A.input_tokens, 'tokens\n' .. line.model .. '\ninput')
count(A.output_tokens, 'tokens\n' .. line.model .. '\noutput')
observe(line.ended - line.started, 'call\n' .. line.model)
if A.first_ms ~= '' then observe(tonumber(A.first_ms), 'first\n' .. line.model) end

-- Whether the endpoint may still hold an answer for another call of this step under the same key.
local function in_doubt()
  local fields = redis.call('HGETALL', ledger)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'c:' and fields[i] ~= field then
      local other = cjson.decode(fields[i + 1])
      if other.step == line.step and other.hash == line.hash and other.number == line.number
        and (other.outcome == 'unknown' or other.outcome == 'open') then return true end
    end
  end
  return false
end

if A.value == '' then
  -- A known outcome without an answer ends the life of its idempotency key: an endpoint that honours
  -- keys would repeat the same refusal for ever. After `unknown` it may hold the answer for us, and a
  -- refusal at the door (too many requests, still at work on it) says nothing of that.
  local key = 'n:' .. A.step
  local present = tonumber(redis.call('HGET', ledger, key) or 0) == line.number
  local spent = A.outcome == 'paid' or (A.outcome == 'rejected' and not (A.at_door == '1' and in_doubt()))
  if present and spent then redis.call('HINCRBY', ledger, key, 1) end
elseif keep_step(job, A) then
  if A.outcome == 'paid' then
    redis.call('SET', memo_of(job.user, A.hash), job.id .. '\n' .. A.step, 'PX', KEEP_MS)
  end
  if word == 'ok' and A.note ~= '' then
    advance(job, A)
  elseif word == 'lost' and job.worker then
    redis.call('PUBLISH', K('control_channel'), job.id .. '\n' .. A.step)
  end
end
return told()
