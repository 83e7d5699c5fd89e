package waybillmysql_test

func child() bool { return false }
