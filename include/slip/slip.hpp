// Everything.
#pragma once

#include "slip/buffer.hpp"
#include "slip/device.hpp"
#include "slip/error.hpp"
#include "slip/event.hpp"
#include "slip/figures.hpp"
#include "slip/kernel.hpp"
#include "slip/name.hpp"
#include "slip/observer.hpp"
#include "slip/op.hpp"
#include "slip/page.hpp"
#include "slip/plan.hpp"
#include "slip/race.hpp"
#include "slip/range.hpp"
#include "slip/stream.hpp"
#include "slip/trace.hpp"
