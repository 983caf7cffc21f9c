/* elementary.h - exp and log in double precision by operations that IEEE 754 defines to the bit, so that what a model
 * file's settings become is the same with any math library. */
#ifndef CONVOD_ENGINE_MODEL_ELEMENTARY_H
#define CONVOD_ENGINE_MODEL_ELEMENTARY_H

/* ln(x) of a positive, normal x; others give what the formula does. Within 3e-16, relative to 1 + |ln(x)|. */
double elementary_log(double x);

/* e^x, |x| <= 700. Relative error within 5e-16. */
double elementary_exp(double x);

#endif
