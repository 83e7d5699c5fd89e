// Package postgres keeps an outbox and an inbox in PostgreSQL.
package postgres
