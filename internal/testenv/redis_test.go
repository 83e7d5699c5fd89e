package testenv_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

func TestRedisKeepsDataOverKillAndRestart(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t, testenv.RedisOptions{Config: []string{"maxmemory 33mb"}})
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), DialTimeout: patience.For(time.Second)})
	defer c.Close()
	if got := c.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]; got != "34603008" {
		t.Errorf("maxmemory is %q", got)
	}
	if err := c.Set(t.Context(), "kept", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.Kill()
		if err := s.Do(t.Context(), "PING"); err == nil {
			t.Fatal("the server still answers")
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := c.Get(t.Context(), "kept").Val(); got != "1" {
			t.Fatalf("the server has forgotten: %q", got)
		}
	}
}

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	nodes := testenv.OwnRedisCluster(t, 3)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[2].Addr()}})
	defer c.Close()
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		if err := c.Set(t.Context(), key, 1, 0).Err(); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}
