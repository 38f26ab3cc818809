// Package chi holds no code: the middleware of package idempotent works on chi
// routers unchanged, and the tests here prove it. It is a module of its own so
// that nobody gets chi by getting the library.
//
//	router := chi.NewRouter()
//	router.Use(middleware.RequestID, middleware.Recoverer, authenticate)
//	router.With(guard.Middleware(principal)).Post("/orders", createOrder)
package chi
