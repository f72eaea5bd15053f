module gpushare/limit

go 1.26.0
