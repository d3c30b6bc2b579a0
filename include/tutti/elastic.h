// Elastic: a rank of a job that goes on when ranks die. `tutti run --elastic MIN:MAX` starts the ranks, replaces those
// that die, and tells all of them when to meet anew; the program is one loop (docs/elastic.md):
//
//   auto job = tutti::Elastic::join();
//   const auto restore = [&](tutti::Communicator& communicator, std::int32_t source) -> tutti::Status {
//     ... broadcast the state from rank `source` into spare memory; swap it in when that went well ...
//   };
//   while (job->next(kSteps, restore)) {
//     tutti::Status status = job->communicator().all_reduce(...);   // the work of step job->step()
//     if (status.ok()) ... take the result into the state ...
//     job->done(status);
//   }
//   return job->status().ok() ? 0 : 1;
//
// The program's part of the bargain: whenever done() or next() is called, its state is that of the last step that it
// called done in (or restored), whole. So results of a step, and a restored state, go into spare memory first, and a
// step or a restore that fails has changed nothing.
//
// After a death all ranks that live, and the replacements, meet in a new communicator; the job goes on at the least
// step that a survivor has done, and next() gives everybody the state of a rank that is there. Where nobody has a
// state (at the beginning, or when all that had one are gone) that is step 0 and the state that the program begins
// with. Once next() has said false on all ranks nobody is replaced any more: a rank that fails then fails the job.
// Without `tutti run --elastic` the same program is an ordinary one: the first failure ends it.
//
// For one thread at a time.
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

class TUTTI_API Elastic {
 public:
  // Joins the job as one of its ranks, or as the replacement of one. The launcher gives the rank, the size, the meeting
  // point and the job key, so these fields of `options` have no effect in an elastic job. Returns at once: the ranks
  // meet in next(). Errors: kConfig (TUTTI_ELASTIC_FD is not the launcher's).
  static Result<Elastic> join(const CommunicatorOptions& options = {});
  Elastic(Elastic&&) noexcept;
  Elastic& operator=(Elastic&&) noexcept;
  ~Elastic();

  // Gives this rank the state of another: `source`, a rank of `communicator`. All ranks take part.
  using Restore = std::function<Status(Communicator& communicator, std::int32_t source)>;
  // True: a step is to be done, and there is a communicator to do it with; blocks while ranks have to meet anew, and
  // calls `restore` once after each meeting, again after the next one where it fails. False: all ranks have done
  // `steps` steps (the same number on all), and have the state of then, or this rank cannot go on; see status().
  bool next(std::uint64_t steps, const Restore& restore);
  // How the step went. After an error the ranks meet anew: next() ends the communicator, and memory that it allocated
  // or registered must have been released by then.
  void done(const Status& status);

  std::uint64_t step() const;    // to be done now: 0, 1, ...; goes back where others had not come as far
  std::int32_t meeting() const;  // how often the ranks have met: 1, 2, ...
  Communicator& communicator();  // after next() said true; another one after each meeting, with other numbers perhaps
  const Status& status() const;  // why this rank cannot go on; ok: nothing is wrong

 private:
  explicit Elastic(std::unique_ptr<detail::ElasticImpl> impl);
  std::unique_ptr<detail::ElasticImpl> impl_;
};

}  // namespace tutti
