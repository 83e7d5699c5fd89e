// Package dashboard holds tests only. They use the dashboard in headless Chromium as a person would: by mouse, by
// keyboard alone, by eye (axe-core looks for barriers), and with texts that try to become scripts.
//
// The browser is WAYBILL_TEST_CHROMIUM, or the chromium of the system. With WAYBILL_TEST_SCREENSHOTS, a folder, every
// page is kept there as a picture: light and dark, wide and narrow.
package dashboard
