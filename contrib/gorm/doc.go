// Package waybillgorm lets GORM services stage with a *gorm.DB and write handlers that receive one.
//
//	store, err := postgres.NewSQL(sqlDB, postgres.Options{Source: "/orders"}) // sqlDB, err := db.DB()
//	err = store.Migrate(ctx) // when you deploy
//	stager := waybillgorm.NewStager(store.SQL())
//	err := db.Transaction(func(tx *gorm.DB) error {
//		if err := tx.Create(&order).Error; err != nil {
//			return err
//		}
//		_, err := stager.Stage(ctx, tx, OrderPlaced.Message(order))
//		return err
//	})
//
//	handled, err := waybillgorm.NewInbox(db, store)
//	billing, err := inbox.New(handled, "billing", inbox.Options{})
//	handler := inbox.Handler(billing, OrderPlaced, func(ctx context.Context, tx *gorm.DB, o Order) error {
//		return tx.Create(&Bill{OrderID: o.ID}).Error
//	})
//
// # Guarantees
//
// A message is staged in the transaction of the *gorm.DB, with prepared statements or without. A *gorm.DB that is in no
// transaction is refused. The *gorm.DB that a handler receives is its own: it shares no state with the application's,
// so that nothing of a finished transaction is left in that one.
//
// # Concurrency
//
// Stagers, inboxes and units of work are safe for concurrent use. The *gorm.DB of a transaction is not, as with GORM.
//
// # Ownership
//
// The *gorm.DB, the stager and the inbox stay the caller's. Nothing is closed here.
//
// # Limits
//
// The database must be one that Waybill has a store for, opened by database/sql: with GORM's Postgres driver, pgx. A
// handler's *gorm.DB prepares no statements, even with gorm.Config.PrepareStmt.
package waybillgorm
