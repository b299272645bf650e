-- ADLRO beside Slurm: hold the batch jobs of some partitions until ADLRO has chosen their place.
-- It belongs beside slurm.conf, with JobSubmitPlugins=lua there. It runs inside slurmctld: it only marks and holds.

-- The partitions whose jobs ADLRO places.
local PARTITIONS = { @PARTITIONS@ }
-- Who may change the placement of a job besides root: the account of the daemon, by its number.
local PLACERS = { [0] = true@PLACERS@ }
-- Only for sites on which each GPU has a type of its own: what users ask for, and the node feature that means it.
local TYPES = { @TYPES@ }
-- What a user may say to ADLRO in a comment. All other words that begin with adlro: are ours.
-- `token` names a submission of the API, which runs sbatch as the user; it says nothing about where a job runs.
local FOR_USERS = { family = true, estimate = true, models = true, gpumemory = true, token = true }

-- Whether a job goes to our partitions only; one that names none goes to Slurm's default.
local function is_ours(asked, partitions)
   if asked == nil or asked == "" then
      for name, partition in pairs(partitions) do
         if partition.flag_default == 1 then return PARTITIONS[name] == true end
      end
      return false
   end
   for name in string.gmatch(asked, "[^,]+") do
      if not PARTITIONS[name] then return false end
   end
   return true
end

local function is_set(number)
   return number ~= nil and number ~= slurm.NO_VAL and number ~= slurm.NO_VAL16 and number ~= slurm.NO_VAL64
end

-- A job that ADLRO has no words for is left to Slurm: an interactive one, one that names its nodes or a reservation,
-- a heterogeneous one, one that asks for some GPUs on each of several nodes.
local function is_placeable(job)
   if job.script == nil or job.script == "" then return false end
   if (job.req_nodes or "") ~= "" or (job.reservation or "") ~= "" then return false end
   if is_set(job.het_job_offset) then return false end
   local several = is_set(job.min_nodes) and job.min_nodes > 1
   return not (several and string.find(job.tres_per_node or "", "gpu"))
end

local function cleaned(comment, keep)
   local text = string.gsub(comment or "", "adlro:(%a+)(=?%S*)", function(word, value)
      if keep or FOR_USERS[word] then return nil end
      return ""
   end)
   return text
end

-- gpu:v100:2 becomes gpu:2 and the feature of its nodes, where no device has the type v100.
local function untyped(job, field)
   local asked, feature = job[field], nil
   if asked == nil then return end
   local function plain(word, count)
      if not TYPES[word] then return nil end
      feature = TYPES[word]
      return "gpu:" .. count
   end
   local text = string.gsub(asked, "gpu:(%a[%w_%-]*):(%d+)", plain)
   text = string.gsub(text, "gpu:(%a[%w_%-]*)$", function(word) return plain(word, "1") end)
   if feature == nil then return end
   job[field] = text
   job.features = ((job.features or "") ~= "") and (job.features .. "&" .. feature) or feature
end

function slurm_job_submit(job, partitions, uid)
   if not is_ours(job.partition, partitions) or not is_placeable(job) then
      return slurm.SUCCESS
   end
   untyped(job, "tres_per_node")
   untyped(job, "tres_per_job")
   local comment = cleaned(job.comment, PLACERS[uid])
   if not string.find(comment, "adlro:held", 1, true) then
      comment = (comment == "" and "" or comment .. " ") .. "adlro:held"
   end
   job.comment = comment
   job.priority = 0
   return slurm.SUCCESS
end

-- The owner may cancel a job, or change its time limit or its name, but not where and when it starts.
function slurm_job_modify(wish, job, partitions, uid)
   if PLACERS[uid] or not string.find(job.comment or "", "adlro:", 1, true) then return slurm.SUCCESS end
   if is_set(wish.priority) or wish.req_nodes ~= nil or wish.tres_per_node ~= nil or wish.tres_per_job ~= nil
      or wish.comment ~= nil then
      slurm.log_info("adlro: job %u: uid %u may not change where it starts", job.job_id, uid)
      return slurm.ERROR
   end
   return slurm.SUCCESS
end

return slurm.SUCCESS
