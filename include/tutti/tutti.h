// Includes all public headers of Tutti: #include <tutti/tutti.h>.
#pragma once

#include "tutti/collectives.h"
#include "tutti/communicator.h"
#include "tutti/elastic.h"
#include "tutti/group.h"
#include "tutti/plan.h"
#include "tutti/result.h"
#include "tutti/types.h"
#include "tutti/unique_id.h"
#include "tutti/user_reduction.h"
#include "tutti/version.h"
