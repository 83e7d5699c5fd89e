// Package redisstreams is a transport on Redis Streams.
package redisstreams
