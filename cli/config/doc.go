// Package config reads settings from a YAML file, the environment and flags into structs.
//
//	stores:
//	  shop:
//	    kind: postgres
//	    url: {file: /run/secrets/shop-url}
//
// One name means one setting everywhere. The key stores.shop.source is also the environment variable
// WAYBILL_STORES__SHOP__SOURCE and the flag --set stores.shop.source=... A flag wins over the environment, the
// environment over the file, the file over the default.
//
// The name of a key is the name of the struct's field in lower case with underscores: MaxMessageBytes is
// max_message_bytes. The fields of an embedded struct stand beside the others. Fields that cannot be written as text,
// such as functions, have no key.
//
// # Guarantees
//
//   - Unknown keys, keys that are given twice and values of the wrong type are errors. An error has the file and the
//     line, the variable or the flag that holds the setting. All are reported at once.
//   - Print never shows a [Secret], nor a password in a URL.
//
// # Concurrency
//
// Load and Print keep nothing and are safe for concurrent use. A [Loaded] is not changed after Load, so it is safe for
// concurrent use as well.
//
// # Ownership
//
// Decode fills the caller's struct and keeps no pointer to it. A [Section] shares the settings with its [Loaded].
//
// # Limits
//
// A file has at most 1 MiB, and a secret's file 64 KiB. Anchors work, merge keys (<<) are refused.
package config
