package testenv

import "context"

// Packages that run side by side share a broker: several suites with messages at the limits hold more than half a
// gigabyte.
const memoryLimit, diskLimit = "2GB", "50MB"

// RaiseMemoryAlarm raises the memory alarm: every connection that publishes is blocked (connection.blocked) until it is
// cleared.
func (s *RabbitMQServer) RaiseMemoryAlarm(ctx context.Context) error {
	return s.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", "1")
}

// ClearMemoryAlarm ends RaiseMemoryAlarm. A restart ends it too.
func (s *RabbitMQServer) ClearMemoryAlarm(ctx context.Context) error {
	return s.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", memoryLimit)
}

// RaiseDiskAlarm makes the broker take its disk for full: every connection that publishes is blocked
// (connection.blocked) until the alarm is cleared. Queues go on delivering.
func (s *RabbitMQServer) RaiseDiskAlarm(ctx context.Context) error {
	return s.Ctl(ctx, "set_disk_free_limit", "1000000000000000")
}

// ClearDiskAlarm ends RaiseDiskAlarm. A restart ends it too.
func (s *RabbitMQServer) ClearDiskAlarm(ctx context.Context) error {
	return s.Ctl(ctx, "set_disk_free_limit", diskLimit)
}
