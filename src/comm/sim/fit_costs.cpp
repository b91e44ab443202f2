#include "comm/sim/fit_costs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/fail.hpp"

namespace slip::comm {
namespace {

constexpr std::size_t kFactors = 2 * kProtocols;
using Point = std::array<double, kFactors>;  // logarithms of the factors: latencies first, then rates

// The weight of the penalty: a factor of e, or 1/e, adds as much to the loss as this mean error of the rows. A larger
// value gives worse fits. With a smaller value, constants that few rows depend on drift away from their defaults.
constexpr double kPenalty = 0.003;
constexpr int kSteps = 600, kRounds = 2;

CostFactors factors_at(const Point& point) {
  CostFactors factors;
  for (std::size_t i = 0; i < kProtocols; ++i) {
    factors.latency[i] = std::exp(point[i]);
    factors.rate[i] = std::exp(point[kProtocols + i]);
  }
  return factors;
}

// The terms of each row, computed once: only the factors change during the search.
class Rows {
 public:
  Rows(const CollectiveModel& model, Collective kind, std::span<const Measurement> rows) {
    for (const Measurement& row : rows) rows_.push_back({row.us, model.choice_terms(kind, row.bytes)});
  }

  // The square of small errors and the amount of large ones, so that a single outlier does not determine the fit.
  double loss(const Point& point) const {
    const CostFactors factors = factors_at(point);
    double sum = 0, penalty = 0;
    for (const auto& [measured, terms] : rows_) {
      double us = terms.front().us(factors);
      for (const CollectiveModel::Term& term : terms) us = std::min(us, term.us(factors));
      const double error = std::abs(std::log(us / measured));
      sum += std::min(error, 4 * error * error);
    }
    for (const double each : point) penalty += each * each;
    return sum / static_cast<double>(rows_.size()) + kPenalty * penalty;
  }

 private:
  std::vector<std::pair<double, std::vector<CollectiveModel::Term>>> rows_;
};

// The simplex search of Nelder and Mead (1965).
class Simplex {
 public:
  Simplex(const Rows& rows, const Point& start, double size) : rows_(rows) {
    for (std::size_t i = 0; i <= kFactors; ++i) {
      Corner& corner = corners_[i];
      corner.point = start;
      if (i > 0) corner.point[i - 1] += size;
      corner.loss = rows.loss(corner.point);
    }
  }

  void step() {
    std::ranges::stable_sort(corners_, {}, &Corner::loss);
    Corner& worst = corners_.back();
    const Corner away = toward(worst, -1);
    if (away.loss < corners_.front().loss) {
      const Corner further = toward(worst, -2);
      worst = further.loss < away.loss ? further : away;
    } else if (away.loss < corners_[kFactors - 1].loss) {
      worst = away;
    } else if (const Corner nearer = toward(worst, 0.5); nearer.loss < worst.loss) {
      worst = nearer;
    } else {
      shrink();
    }
  }

  const Point& best() const { return std::ranges::min_element(corners_, {}, &Corner::loss)->point; }
  double loss() const { return std::ranges::min_element(corners_, {}, &Corner::loss)->loss; }

 private:
  struct Corner {
    Point point{};
    double loss = 0;
  };

  // From the middle of the other corners, `part` of the way to the worst one.
  Corner toward(const Corner& worst, double part) const {
    Corner result;
    for (std::size_t axis = 0; axis < kFactors; ++axis) {
      double middle = 0;
      for (std::size_t i = 0; i < kFactors; ++i) middle += corners_[i].point[axis] / kFactors;
      result.point[axis] = middle + part * (worst.point[axis] - middle);
    }
    result.loss = rows_.loss(result.point);
    return result;
  }
  void shrink() {
    for (std::size_t i = 1; i <= kFactors; ++i) {
      for (std::size_t axis = 0; axis < kFactors; ++axis)
        corners_[i].point[axis] = (corners_[0].point[axis] + corners_[i].point[axis]) / 2;
      corners_[i].loss = rows_.loss(corners_[i].point);
    }
  }

  const Rows& rows_;
  std::array<Corner, kFactors + 1> corners_;
};

CostFactors fit(const CollectiveModel& model, Collective kind, std::span<const Measurement> measured) {
  const Rows rows(model, kind, measured);
  // The search ends in the nearest local minimum. So it starts from several points: the defaults, longer latencies, and
  // a slow network on which LL128 is not used.
  constexpr Point kStarts[] = {
      {0, 0, 0, 0, 0, 0}, {1, 1, 1, 0, 0, 0}, {0.3, 0.3, 1.5, 0, -1.5, 0}, {1, 1, 2, 0, -1.5, 0}};
  Point best{};
  double min_loss = rows.loss(best);
  for (const Point& start : kStarts) {
    Point at = start;
    for (int round = 0; round < kRounds; ++round) {
      Simplex simplex(rows, at, round == 0 ? 0.5 : 0.3);
      for (int i = 0; i < kSteps; ++i) simplex.step();
      at = simplex.best();
      if (simplex.loss() < min_loss) {
        min_loss = simplex.loss();
        best = at;
      }
    }
  }
  // The loss limits what outliers count, and the mean error does not. So a table of scattered times can have a larger
  // mean error with the fitted factors. Then the defaults are kept.
  const CostFactors factors = factors_at(best);
  const double fitted = errors_of(CollectiveModel(model.inputs(), factors), kind, measured).mean;
  return fitted > errors_of(model, kind, measured).mean ? CostFactors{} : factors;
}

// One row for each size, in the order of the sizes, with the mean time of its rows. A log with several runs has each
// size several times. Cross-validation needs different sizes: otherwise the fit would have seen the sizes left out.
std::vector<Measurement> by_size(std::span<const Measurement> rows) {
  std::map<double, std::pair<double, int>> times;  // their sum and number
  for (const Measurement& row : rows) {
    times[row.bytes].first += row.us;
    ++times[row.bytes].second;
  }
  std::vector<Measurement> result;
  for (const auto& [bytes, time] : times) result.push_back({bytes, time.first / time.second});
  return result;
}

}  // namespace

FitErrors errors_of(const CollectiveModel& model, Collective kind, std::span<const Measurement> rows) {
  FitErrors errors;
  for (const Measurement& row : rows) {
    const double error = std::abs(model.choice(kind, row.bytes).us / row.us - 1);
    errors.mean += error / static_cast<double>(rows.size());
    if (error > errors.worst) {
      errors.worst = error;
      errors.worst_bytes = row.bytes;
    }
  }
  return errors;
}

Fit fit_costs(const ModelInputs& inputs, Collective kind, std::span<const Measurement> measured, Here here) {
  if (inputs.ranks < 2)
    base::fail(ErrorCode::kInvalidValue, here, "a fit needs at least 2 ranks, there is {}", inputs.ranks);
  for (const Measurement& row : measured) {
    if (!(row.bytes > 0) || !(row.us > 0) || !std::isfinite(row.bytes) || !std::isfinite(row.us))
      base::fail(ErrorCode::kInvalidValue, here, "a row of {} bytes and {} us: both must be more than 0", row.bytes,
                 row.us);
  }
  const std::vector<Measurement> rows = by_size(measured);
  if (rows.size() < kMinFitRows)
    base::fail(ErrorCode::kInvalidValue, here, "a fit needs at least {} rows with different sizes, there are {}",
               kMinFitRows, rows.size());
  const CollectiveModel model(inputs);
  Fit result;
  result.before = errors_of(model, kind, rows);
  // Cross-validation: each half of the rows is left out once, so that the error does not depend on the choice of a
  // half.
  for (const std::size_t odd : {0U, 1U}) {
    std::vector<Measurement> used, left;
    for (std::size_t i = 0; i < rows.size(); ++i) (i % 2 == odd ? left : used).push_back(rows[i]);
    const FitErrors errors = errors_of(CollectiveModel(inputs, fit(model, kind, used)), kind, left);
    result.left_out.mean += errors.mean * static_cast<double>(left.size()) / static_cast<double>(rows.size());
    if (errors.worst > result.left_out.worst) {
      result.left_out.worst = errors.worst;
      result.left_out.worst_bytes = errors.worst_bytes;
    }
  }
  result.rows_left_out = rows.size();
  result.factors = fit(model, kind, rows);
  result.after = errors_of(CollectiveModel(inputs, result.factors), kind, rows);
  return result;
}

}  // namespace slip::comm
