package core

import "github.com/waybill-go/waybill/internal/check"

// storedDedupeKey returns the dedupe key of a tenant's message as stores keep and compare it: empty if key is, with at
// most 2 * waybill.MaxNameBytes + 1 bytes. Tenants may choose the same key, such as a month: each has keys of its own.
func storedDedupeKey(tenant, key string) string {
	if tenant == "" || key == "" {
		return key
	}
	return tenant + check.TenantEnd + key
}
