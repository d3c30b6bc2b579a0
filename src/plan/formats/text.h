// Converts plans to text for people, one line per step.
#pragma once

#include <string>

#include "plan/plan.h"

namespace tutti {

// Returns the text of a step. For example, "out[1] = recv(1) + in[1] ; send 3": the message from rank 1, plus in[1], is
// stored to out[1] and sent to rank 3. A lane other than 0 follows its peer: "recv(1/2)" receives from rank 1 on lane
// 2. A step with Step::completes is marked "(complete)". A slice of a step with a run has two numbers: "out[2 + 4]" is
// the run of 4 chunks from chunk 2 on. If such a step has no slice, the text has the number of chunks: "(4 chunks)".
std::string to_text(const Channel& channel, const Step& step);

// Returns one line for each step of one rank, of the form "rank 2 channel 0: 3: ..." for step 3. If the step waits for
// step 5 of channel 1, the line ends with " ; after 1:5", or " ; after 1:5 of the tile before". Channels without steps
// have no line.
std::string to_text(const RankPlan& plan, std::uint32_t rank);

// to_text(shape) returns one line that describes the shape. to_text(plan) returns the line of the plan's shape, and
// then the lines of the steps of all ranks.
std::string to_text(const PlanShape& shape);
std::string to_text(const Plan& plan);

}  // namespace tutti
