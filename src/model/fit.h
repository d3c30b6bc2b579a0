// Computes the parameters of a machine from times that `tutti tune` has measured on it. A pure function; may be
// used from any thread.
#pragma once

#include <cstdint>
#include <span>

#include "model/parameters.h"
#include "tutti/result.h"

namespace tutti {

// The names of the measurements (Measurement::what). Each time is that of one call or of one message, unless the list
// states otherwise. Measurement::bytes is the length of the buffer, except for "mailboxes.crowd" and "N ranks: ...".
//
//   "alone"              an all_reduce of 8 bytes in a communicator of one rank
//   "memory.one_way"     a broadcast by the chain algorithm from one of two ranks to the other, through slots in shared
//                        memory; half of the time of a broadcast and a broadcast back
//   "memory.stream"      31 such broadcasts in one direction without waiting, and 1 back; the average time of the 32
//   "nic.one_way", "nic.stream"   as "memory.one_way" and "memory.stream", but over sockets
//   "mailboxes"          an all_reduce of two ranks by one_shot, through mailboxes
//   "mailboxes.crowd"    an all_reduce of 8 bytes by one_shot, of twice as many ranks as cores (but at most 16);
//                        `bytes` is the number of ranks
//   "registered"         an all_reduce of two ranks by two_shot, by loads and stores in each other's memory
//   "attached"           an all_reduce of two ranks by two_shot, by system calls (TUTTI_ATTACH=calls)
//   "reduce", "copy"     no call: a rank combines two buffers by kMax, or copies one; both ranks do so at the same time
//   "N ranks: ..."       see model/fit_choices.h; not used here
//
// Parameters for which a measurement is missing keep the values of default_host_parameters(cores). Measured values are
// rounded to four significant digits. Errors: kInvalidArgument if "memory.one_way" lacks a size of at most 64 bytes, or
// lacks two sizes of at least 512 KiB, from which the bandwidth is computed.
Result<Parameters> fit_parameters(std::span<const Measurement> measured, std::uint32_t cores, std::uint64_t slot_bytes);

// How noisy the machine was during the measurements. For each measurement, the 95th percentile of its samples is
// divided by their median (Measurement::p95_us and median_us). (`tutti tune` takes at most nine samples, so the 95th
// percentile is the slowest one.) The measurements of fit_choices.h do not count, because many of them have more ranks
// than cores, and vary also on a quiet machine. The result is the median of these ratios. It is 1 if all samples take
// equally long, or if nothing was measured.
double noise_of(std::span<const Measurement> measured);
// If noise_of() returns at least this, `tutti tune` warns that the machine was busy. (Seen on two cores of an AMD EPYC:
// 1.05 if nothing else runs, 2.1 and 4.4 beside two busy loops.) If noise_of_passes() (fit_choices.h) returns at least
// this, a job that has measured a machine does not use its measurements.
inline constexpr double kMuchNoise = 1.5;

}  // namespace tutti
