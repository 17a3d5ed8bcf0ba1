-- End a job's life: finish, fail and cancel differ only in their arguments.
-- A repeat by nature where a run ends its job: no other run has its number. A person's needs an operation id.
-- A: job, run ('' whoever has it: a person decided), from (set of statuses), status (to enter),
--    result, error (JSON), alert (1: people are told)
-- returns: ok, lost (the run is not the job's any more), none (no such job) or wrong (its status)
local job = load(A.job)
if not job then return {'none'} end
if A.run ~= '' and not holds(job, A) then
  return {job.run == A.run and job.status == A.status and 'ok' or 'lost'}
end
if not among(A.from, job.status) then return {'wrong'} end
local worker = job.worker
conclude(job, A.status, now, A.result, A.error, A.alert == '1')
if A.run == '' and worker then redis.call('PUBLISH', K('control_channel'), job.id) end
return {'ok'}
