// Elastic: one rank of a job that continues when ranks die. `tutti run --elastic MIN:MAX` starts MAX ranks and replaces
// ranks that die, at most --max-restarts times. After that the job continues with fewer ranks, down to MIN. After each
// death the live ranks form a new communicator. The program is one loop (docs/elastic.md):
//
//   auto job = tutti::Elastic::join();
//   const auto restore = [&](tutti::Communicator& communicator, std::int32_t source) -> tutti::Status {
//     ... broadcast the state of rank `source` into spare memory, and swap it in if that succeeded ...
//   };
//   while (job->next(kSteps, restore)) {
//     tutti::Status status = job->communicator().all_reduce(...);   // the work of step job->step()
//     if (status.ok()) ... update the state with the result ...
//     job->done(status);
//   }
//   return job->status().ok() ? 0 : 1;
//
// The program must ensure one thing: whenever it calls done() or next(), its state is complete, and is the state after
// the last successful step (or the restored state). So write the results of a step, and a restored state, to spare
// memory first, so that a step or a restore that fails has changed nothing.
//
// After a death the survivors and the replacements, if there are any, form a new communicator. The job continues after
// the lowest number of steps that a survivor has done, and next() gives every rank the state of a rank that has done
// that number. If there is no such rank (at the start, or if all ranks that had a state have died), the job starts at
// step 0 with the program's initial state. If 20 set-ups, restores and steps of a rank fail, although meanwhile no
// other rank has died and this rank has not completed a new step, this rank cannot continue: next() returns false, and
// status() has the last error. When all ranks have done all steps, next() returns false on all of them, and ranks are
// no longer replaced: a rank that fails then makes the job fail. Without `tutti run --elastic` the same program is an
// ordinary job, which the first failure ends.
//
// Threads: an Elastic is used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tutti/communicator.h"
#include "tutti/export.h"
#include "tutti/result.h"

namespace tutti {

namespace detail {
class ElasticImpl;
}  // namespace detail

// One rank of an elastic job. The top of this file explains how a program uses it.
class TUTTI_API Elastic {
 public:
  // Joins the job as one of its ranks, or as a replacement. The launcher provides rank, size, rendezvous address and
  // job key, so these fields of `options` have no effect in an elastic job. Returns at once, because not this
  // function but next() creates the communicator. Errors: kConfig (a TUTTI_* variable is invalid, or TUTTI_ELASTIC_FD
  // is not the launcher's socket).
  static Result<Elastic> join(const CommunicatorOptions& options = {});
  Elastic(Elastic&&) noexcept;
  Elastic& operator=(Elastic&&) noexcept;
  ~Elastic();

  // Copies the state of `source`, a rank of `communicator`, to this rank. All ranks take part, `source` as well.
  using Restore = std::function<Status(Communicator& communicator, std::int32_t source)>;
  // Returns true if the program has to do a step; communicator() is then usable. Blocks while the ranks form a new
  // communicator, and calls `restore` once for each new communicator. If `restore` fails, the ranks form another
  // communicator. Returns false if all ranks have done `steps` steps (the same number on all ranks) and have the final
  // state, or if this rank cannot continue. status() is ok in the first case and an error in the second. Without `tutti
  // run --elastic`, next() does not wait for other ranks at the end, and a `restore` that fails ends the job.
  bool next(std::uint64_t steps, const Restore& restore);
  // Reports the result of the step. After an error the ranks form a new communicator: next() destroys the present
  // one, and every Memory of the present one must be released before next() is called. Without `tutti run --elastic`
  // an error ends the job instead.
  void done(const Status& status);

  // The number of the step to do now, counted from 0. After a restore it may be lower than before, because another rank
  // had done fewer steps.
  std::uint64_t step() const;
  // The number of the set-up that made the present communicator: 1, 2, ...; failed set-ups are counted as well. 0
  // before the first one.
  std::int32_t meeting() const;
  // May be called after next() has returned true, until done() gets an error. Each new communicator may have other rank
  // numbers and another size.
  Communicator& communicator();
  const Status& status() const;  // the reason if this rank cannot continue; ok otherwise

 private:
  explicit Elastic(std::unique_ptr<detail::ElasticImpl> impl);
  std::unique_ptr<detail::ElasticImpl> impl_;
};

}  // namespace tutti
