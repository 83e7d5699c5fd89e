package storetest

var modelChecks = []named{}
