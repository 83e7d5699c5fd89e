package testenv

// Unavailable is unavailable, for tests.
var Unavailable = unavailable
