// Package mongo is an outbox and an inbox in a MongoDB database.
package mongo
